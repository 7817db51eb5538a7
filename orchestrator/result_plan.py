"""What comes home of a run, to which folder of the user's, and where on the machine its checkpoints lie. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jobspecs.rules import is_remote
from orchestrator import artifacts
from orchestrator.model import Assignment, Job

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec

RESULTS = "gpujob-results"  # folder beside the spec; never sent up with workdir


def plan_of(spec: JobSpec, job: Job, run: Assignment, out: str, many: bool = False) -> artifacts.ArtifactPlan:
    """What comes home and where: the spec's `artifacts`, or everything into gpujob-results/NAME beside the spec."""
    base = Path(job.base_dir)
    default = Path(job.results_dir) if job.results_dir and "://" not in job.results_dir else base / RESULTS / job.name
    own = run.task if many else ""  # each of many tasks has its own folder below the job's
    listed = spec.artifacts if isinstance(spec.artifacts, tuple) else ()
    items = []
    for artifact in listed:
        if artifact.to and is_remote(artifact.to):
            continue  # goes to a store from the machine itself
        to = artifact.to or f"./{RESULTS}"
        for name, value in (("{job}", job.name), ("{leg}", run.task), ("{attempt}", str(run.n))):
            to = to.replace(name, value)
        items.append(artifacts.Item(artifact.path, base / Path(to).expanduser() / job.name / own, artifact.when))
    return artifacts.ArtifactPlan(out, default / own, tuple(items))


def checkpoint_root(spec: JobSpec, ckpt_root: str, run: str) -> str:
    """Where a run's checkpoints lie on the machine."""
    path = spec.checkpoint.path if spec.checkpoint is not None else "."
    if path.startswith("/"):
        return path
    return f"{ckpt_root}/{run}" if path == "." else f"{ckpt_root}/{run}/{path}"

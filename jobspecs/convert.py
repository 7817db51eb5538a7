"""`gpujob init`: a spec to start from, empty or made from another tool's.

Rules: the result loads. A key that would not load becomes a comment with its reason; nothing disappears silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from jobspecs import document as doc
from jobspecs.foreign import Draft, dstack, sbatch, skypilot
from jobspecs.load import load_spec
from jobspecs.names import MAX_NAME, cloud_name
from jobspecs.problems import SpecErrors
from jobspecs.source import decode, refuse

Kind = Literal["auto", "skypilot", "dstack", "sbatch"]

TEMPLATE = """\
# A job for gpujob. Check it with `gpujob validate`, see its price with `gpujob plan`, start it with `gpujob apply`.
name: my-job                 # the same name is the same job
gpu: RTX-4090                # or A100-80GB:2, ">=24GB", a list of which any will do, none for a CPU
workdir: .                   # this folder, sent as it is at apply
run: |
  python3 train.py

# What else is often said:
# setup: pip install -r requirements.txt      # on every fresh machine
# max_price: 1.20 USD                         # per machine-hour
# budget: 15 USD                              # the whole job; then save and release
# ttl: 12h                                    # hard end, counted from the first rental
# secrets: [HF_TOKEN]                         # `gpujob secret set HF_TOKEN`, or your environment
# data:
#   - from: ./data                            # lands in $GPUJOB_DATA/data
# checkpoint:                                 # save into $GPUJOB_CKPT, start again from $GPUJOB_RESUME_FROM
#   every: 15m
# artifacts:
#   - path: "*"                               # everything in $GPUJOB_OUT
#     to: ./results
"""

_ORDER = ("name", "workload", "gpu", "cpus", "memory", "disk", "shm_size", "providers", "regions", "spot", "max_price",
          "ttl", "grace", "image", "workdir", "data", "env", "secrets", "retry", "ports", "labels", "setup",
          "run")  # fmt: skip
_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+:=-]*", re.ASCII)
# For a GPU that has no class here, so that the draft still loads.
_ANY_GPU = ">=16GB"


def detect(text: str) -> Kind:
    """Which tool a file is for. Raises SpecErrors when it is none of the three."""
    if re.search(r"^#SBATCH\b", text, re.MULTILINE):
        return "sbatch"
    keys = set(doc.read_document(text, "spec", []).entries)
    if keys & {"gpu", "ttl", "spot", "budget", "checkpoint", "artifacts"} and "resources" not in keys:
        raise refuse("spec", 1, 1, "is a gpujob spec already: there is nothing to convert")
    if keys & {"commands", "type", "backends", "spot_policy", "max_duration"}:
        return "dstack"
    if keys & {"resources", "file_mounts", "envs", "num_nodes"} or {"run", "setup"} & keys:
        return "skypilot"
    raise refuse("spec", 1, 1, "is no SkyPilot or dstack spec and no #SBATCH script")


def convert(text: str, kind: Kind = "auto", *, filename: str = "spec") -> str:
    """A gpujob spec made from another tool's, with comments on what could not be carried over.

    Raises SpecErrors when the text is not of that kind or has no command to run.
    """
    text = decode(text, filename)
    if kind == "auto":
        kind = detect(text)
    if kind == "sbatch":
        draft = sbatch(text)
    else:
        source = doc.plain(doc.read_document(text, filename, []))
        draft = dstack(source) if kind == "dstack" else skypilot(source)
    if not draft.keys.get("run"):
        raise refuse(filename, 1, 1, f"has no command to run, so it is no {kind} job")
    draft.keys.setdefault("gpu", "none")
    _clean_name(draft)
    return _loadable(draft, kind, filename)


def _clean_name(draft: Draft) -> None:
    name = str(draft.keys.get("name") or "my-job")
    draft.keys["name"] = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-._")[:MAX_NAME] or cloud_name(name)


def _loadable(draft: Draft, kind: str, filename: str) -> str:
    """The text of the draft, without the keys that do not load; at most one round for each key."""
    for _ in range(len(draft.keys) + 1):
        text = _render(draft, kind)
        given = {name: "" for name, value in (draft.keys.get("env") or {}).items() if value is None}
        try:
            load_spec(text, filename, environ=given)
        except SpecErrors as errors:
            for problem in errors.problems:
                _drop(draft, problem.key, problem.reason, errors)
        else:
            return text
    raise refuse(filename, 1, 1, "could not be converted")


def _drop(draft: Draft, path: str, reason: str, errors: SpecErrors) -> None:
    key = re.split(r"[.\[]", path)[0]
    value = draft.keys.pop(key, None)
    if key in ("", "run", "name") or (key == "gpu" and value == _ANY_GPU):
        raise errors
    if value is not None:
        said = f"{key}: {json.dumps(value, ensure_ascii=False)}"
        draft.notes.append(f"not carried over: {said[:100]} ({reason.splitlines()[0][:160]})")
    if key == "gpu":
        draft.keys["gpu"] = _ANY_GPU


def _render(draft: Draft, kind: str) -> str:
    lines = [f"# Converted from a {kind} file; check it with `gpujob validate`."]
    lines += [f"# {line}" for note in dict.fromkeys(draft.notes) for line in note.splitlines()]
    for key in _ORDER:
        if draft.keys.get(key) not in (None, [], {}):
            lines += _entry(key, draft.keys[key], "")
    return "\n".join(lines) + "\n"


def _entry(key: str, value: Any, indent: str) -> Iterator[str]:
    """The lines of one key."""
    if isinstance(value, str) and key in ("setup", "run"):
        mark = "|2" if value[:1] in (" ", "\n") else "|"
        yield f"{key}: {mark if value.endswith(chr(10)) else mark + '-'}"
        yield from (f"  {line}" if line else "" for line in value.rstrip("\n").split("\n"))
    elif isinstance(value, dict):
        yield f"{indent}{key}:"
        for name, each in value.items():
            yield from _entry(_scalar(name), each, indent + "  ")
    elif isinstance(value, list) and any(isinstance(each, dict) for each in value):
        yield f"{indent}{key}:"
        for each in value:
            inner = ", ".join(f"{name}: {_scalar(part)}" for name, part in each.items())
            yield f"{indent}  - {{{inner}}}"
    elif isinstance(value, list):
        yield f"{indent}{key}: [{', '.join(map(_scalar, value))}]"
    else:
        yield f"{indent}{key}: {_scalar(value)}".rstrip()


def _scalar(value: Any) -> str:
    text = "" if value is None else str(value)
    if value is None or (_PLAIN.fullmatch(text) and not text.endswith(":")):
        return text
    return json.dumps(text, ensure_ascii=False)

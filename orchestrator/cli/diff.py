"""`diff`: what differs between two runs or attempts: spec, code, data, machine, packages, results, cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.output import counted, cut, line_width, money, print_json, put, table
from orchestrator.cli.reading import View, open_view
from orchestrator.difference import Comparison, Difference, Record, compare, flat, packages_of
from orchestrator.home import Home
from orchestrator.model import Assignment, Rental

VALUE_SHOWN = 34  # of one side: two of them, section and key fit a line
SHOWN = 60  # rows of a table; -o json has all
METRICS = "metrics.jsonl"
TORCH = ("version", "cuda", "available", "devices")  # what both the look after setup and the record at the end have


def _add(parser: argparse.ArgumentParser) -> None:
    for name in ("one", "other"):
        parser.add_argument(
            name, metavar="RUN", help="NAME (newest run), NAME.2 (a run), NAME@3 (an attempt), NAME/LEG, NAME/best"
        )
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Compare two runs; exit 0 whether they differ or not."""
    home = Home.from_env()
    views = [open_view(home, name) for name in (args.one, args.other)]
    found = compare(*(record_of(home, view) for view in views))
    if args.output == "json":
        print_json(as_json(views, found))
    else:
        put("\n".join(lines_of(args.one, args.other, views, found)))
    return exits.OK


def lines_of(one: str, other: str, views: list[View], found: Comparison) -> list[str]:
    """The table and what is equal or unknown."""
    lines = [f"{name}: {view.job.id}" + (f", run {mine.key}" if (mine := run_of(view)) else "") for name, view in
             zip((one, other), views, strict=True)]  # fmt: skip
    lines.append("")
    if found.differences:
        rows = [_row(each) for each in found.differences[:SHOWN]]
        first, second = (one, other) if one != other else (f"{one} (1)", f"{other} (2)")
        lines.append(table(("WHAT", "KEY", cut(first, VALUE_SHOWN), cut(second, VALUE_SHOWN)), rows, shrink=("KEY",)))
        if len(found.differences) > SHOWN:
            lines.append(f"... and {len(found.differences) - SHOWN} more: -o json")
    else:
        lines.append("no difference")
    if found.same:
        lines.append(cut(f"the same: {', '.join(found.same)}", line_width()))
    if found.unknown:
        lines.append(cut(f"not known of both, so not compared: {', '.join(found.unknown)}", line_width()))
    return lines


def _row(each: Difference) -> tuple[str, str, str, str]:
    one, other = (cut(" ".join((value if value is not None else "-").split()), VALUE_SHOWN)
                  for value in (each.one, each.other))  # fmt: skip
    return each.section, each.key, one, other


def as_json(views: list[View], found: Comparison) -> dict[str, Any]:
    """As documented in the reference of the JSON output."""
    sides = [
        {"id": v.job.id, "name": v.job.name, "run": mine.key if mine else None, "rental": mine.rental if mine else None}
        for v, mine in ((v, run_of(v)) for v in views)
    ]
    return {
        "one": sides[0],
        "other": sides[1],
        "differences": [
            {"section": d.section, "key": d.key, "one": d.one, "other": d.other} for d in found.differences
        ],
        "same": list(found.same),
        "unknown": list(found.unknown),
    }


# --- the record of one run --------------------------------------------------------------------------------------------


def run_of(view: View) -> Assignment | None:
    """The newest run of what was named: of the leg in `NAME/LEG`, of the attempt in `NAME@3`, else of all."""
    mine = [run for run in view.runs if run.task == view.ref.leg]
    return max(mine, key=lambda run: run.n) if mine else view.current


def record_of(home: Home, view: View) -> Record:
    """What is known of the run that a view is of."""
    job, current = view.job, run_of(view)
    task = next((t for t in view.tasks if current is not None and t.id == current.task), None)
    rental = next((r for r in view.rentals if current is not None and r.id == current.rental), None)
    looks = {look.run: look.facts for look in view.looks if current is not None and look.rental == current.rental}
    machine = looks.get("", {})
    after = looks.get(current.key, {}) if current is not None else {}
    return {
        "spec": {
            **flat({key: value for key, value in job.spec.items() if key != "name"}),
            **flat({"parameters": dict(task.params) if task is not None else {}}),
        },
        "code": _code(home, view),
        "data": _data(job.data_manifests),
        "machine": _machine(rental, machine),
        "environment": _environment(current, after),
        "packages": _packages(current, after),
        "result": _result(view, current, rental),
    }


def _code(home: Home, view: View) -> dict[str, str]:
    """The commit, and every file of the snapshot by its hash."""
    from orchestrator.snapshot import SnapshotError, load

    job = view.job
    found = {"commit": job.git_commit} if job.git_commit else {}
    if not job.snapshot:
        return found
    try:
        entries = load(home, job.snapshot)
    except SnapshotError:
        return {**found, "snapshot": job.snapshot[:12]}
    files = {entry.path: entry.sha256[:12] for entry in entries if entry.kind == "file"}
    links = {entry.path: f"-> {entry.target}" for entry in entries if entry.kind == "link"}
    return {**found, **files, **links}


def _data(manifests: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for path, manifest in manifests.items():
        if isinstance(manifest, Mapping):
            size = f"{counted(manifest.get('count') or 0, 'file')}, {manifest.get('bytes')} bytes"
            found[path] = f"{size}, {str(manifest.get('hash'))[:12]}"
    return found


def _machine(rental: Rental | None, facts: Mapping[str, Any]) -> dict[str, str] | None:
    if rental is None:
        return None
    offer, gpu = rental.offer, facts.get("gpu") or {}
    cards = gpu.get("cards") or []
    found = {
        "provider": offer.provider, "region": offer.region, "gpu": offer.gpu, "gpus": str(offer.gpu_count),
        "spot": "yes" if offer.spot else "no", "image": offer.image, "machine": rental.machine_id,
        "driver": str(gpu.get("driver") or ""), "driver's CUDA": str(gpu.get("cuda") or ""),
        "card": str(cards[0].get("name") or "") if cards else "", "links": ", ".join(sorted(gpu.get("links") or {})),
        "cores": str(facts.get("cpus") or ""), "kernel": str(facts.get("kernel") or ""),
        "RAM": _gib(facts.get("memory")), "shm": _gib(facts.get("shm")),
    }  # fmt: skip
    return {key: value for key, value in found.items() if value}


def _gib(fact: Any) -> str:
    total = fact.get("total") if isinstance(fact, Mapping) else None
    return f"{total / 1024**3:.3g} GiB" if isinstance(total, (int, float)) and total else ""


def _environment(run: Assignment | None, after: Mapping[str, Any]) -> dict[str, str] | None:
    """Python and torch: of the look after setup, else of the record at the end."""
    known = after if after.get("python") else run.environment if run is not None else {}
    torch = known.get("torch")
    kept = {"python": known.get("python"), "torch": {k: torch.get(k) for k in TORCH} if torch else None}
    found = flat({key: value for key, value in kept.items() if value})
    return found or None


def _packages(run: Assignment | None, after: Mapping[str, Any]) -> dict[str, str] | None:
    lines = after.get("packages") or (run.environment.get("pip") if run is not None else None)
    return packages_of(lines) if lines else None


def _result(view: View, run: Assignment | None, rental: Rental | None) -> dict[str, str] | None:
    if run is None or run.exit is None:
        return None
    began = run.ordered_at or run.committed_at
    found = {
        "exit": f"{run.exit.stage} {run.exit.rc}" + (f" ({run.exit.signalled})" if run.exit.signalled else ""),
        "cause": run.cause.klass if run.cause is not None else "",
        "last step": str(run.last_step) if run.last_step is not None else "",
        "resumed from": run.resume_name,
        "seconds": f"{run.exit.at - began:.0f}",
        "outcome": str(view.job.outcome or ""),
    }
    if rental is not None:
        spent = sum((bill.amount for bill in view.bills if bill.rental == rental.id), Decimal(0))
        found["machine's cost"] = money(spent, rental.offer.currency, view.play)
    found.update({f"metric {key}": value for key, value in _metrics(view.job.results_dir).items()})
    return {key: value for key, value in found.items() if value}


def _metrics(folder: str) -> dict[str, str]:
    """The last value of each number in the results' metrics file; nothing where there is none."""
    if not folder:
        return {}
    try:
        text = (Path(folder) / METRICS).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    last: dict[str, str] = {}
    for line in text.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict):
            last.update({str(k): f"{v:g}" for k, v in document.items() if isinstance(v, (int, float))})
    return last


COMMANDS = {"diff": Command(_add, run)}

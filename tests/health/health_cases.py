"""Cases of the generator as the diagnosis sees them, and the tables of labelled lines beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from generator import Case, Wording, reaction_of

from orchestrator.diagnosis import Circumstances, Diagnosis, diagnose

HERE = Path(__file__).parent


def told(case: Case) -> Diagnosis:
    """The diagnosis of a case, with everything that the case knows beside its log."""
    facts = case.facts
    known = Circumstances(
        exit_code=case.exit,
        dmesg=(facts["dmesg"],) if "dmesg" in facts else (),
        disk_full=True if facts.get("disk") == "full" else None,
        provider="gone" if facts.get("provider") == "gone" else "alive",
    )
    return diagnose([case.log], known)


def table(name: str) -> Any:
    """`signatures.yaml` or `field.yaml`."""
    return yaml.safe_load((HERE / f"{name}.yaml").read_text(encoding="utf-8"))


def wording_of(entry: dict[str, Any]) -> Wording:
    """One of the known lines as something that the generator can put into a log."""
    line = entry["line"]
    raised = line.split(":")[0].split(".")[-1].endswith(("Error", "Exception")) and "ChildFailed" not in line
    raised = raised and not line.startswith(("ERROR:", "QueryError"))
    kind = "raise" if raised else "bare" if line == "Killed" else "line"
    codes = {"Killed": 137, "Segmentation fault (core dumped)": 139}
    return Wording(entry["class"], entry["again"], kind, line, codes.get(line, 1))


def several(label: Any) -> tuple[str, ...]:
    """A label of `fresh.yaml`: one right answer, or a list of them."""
    return tuple(label) if isinstance(label, list) else (label,)


def fresh(name: str = "fresh") -> list[tuple[dict[str, Any], Diagnosis]]:
    """The logs of `fresh.yaml` or `fresh_later.yaml`, each with its diagnosis."""
    found = []
    for entry in table(name):
        facts = entry.get("facts", {})
        known = Circumstances(
            exit_code=entry["exit"],
            dmesg=(facts["dmesg"],) if "dmesg" in facts else (),
            disk_full=True if facts.get("disk") == "full" else None,
            provider="alive",
        )
        log = entry["log"].replace("<CR>", "\r").replace("<ESC>", "\x1b").encode()
        found.append((entry, diagnose([log], known)))
    return found


def as_labelled(entry: dict[str, Any], told: Diagnosis) -> bool:
    """Whether class, reaction and line are among those that the label allows."""
    return (
        told.klass in several(entry["class"])
        and reaction_of(told.reaction) in several(entry["again"])
        and any(line in told.line for line in several(entry["line"]))
    )

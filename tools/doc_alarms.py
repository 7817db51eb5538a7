"""The table of alarms, from the rules' own table."""

from __future__ import annotations

from orchestrator.look import KINDS, WASTE, Rule
from orchestrator.spans import span


def alarms_table() -> str:
    """One line an alarm: its key in a spec, what it looks for, its defaults, and whether the spec may let it stop."""
    lines = ["| key below `alarms:` | looks for | default | may stop |", "|---|---|---|---|"]
    for kind in KINDS.values():
        key = kind.name.replace("-", "_")
        mark = " (money without progress)" if kind.name in WASTE else ""
        stop = "yes" if kind.can_stop else "no"
        lines.append(f"| `{key}` | {kind.looks_for}{mark} | {_default(kind.default)} | {stop} |")
    return "\n".join(lines)


def _default(rule: Rule) -> str:
    parts = []
    if rule.percent == rule.percent:
        parts.append(f"percent: {rule.percent:g}")
    if rule.duration == rule.duration:
        parts.append(f"for: {span(rule.duration).removesuffix('00s').removesuffix('00m')}")
    if rule.count == rule.count:
        parts.append(f"count: {rule.count:g}")
    return ", ".join(parts)

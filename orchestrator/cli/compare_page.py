"""The page of `compare --html`: one file with its data, styles and program in it, that asks no network for anything.

Rules: data is embedded as JSON in which no markup can begin, and the program shows it as text, never as markup; a
policy in the page forbids every request. Curves are thinned, since nobody sees 10,000 points on a screen; peaks are
kept.
"""

from __future__ import annotations

import html
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from orchestrator.cli.output import counted, money, span, utc_z
from orchestrator.cli.sweeps import SweepView
from orchestrator.legs import Goal, Leg, Report

PARTS = Path(__file__).parent / "page"
POINTS_MAX = 40_000  # of all curves together: 500 legs with 80 each draw in a moment, and make a file of about 1 MB
POINTS_MIN = 60  # of one curve, however many legs there are


def page(view: SweepView) -> str:
    """The whole page."""
    parts = {
        "title": html.escape(f"{view.job.name}: {counted(len(view.legs), 'leg')}"),
        "style": (PARTS / "compare.css").read_text(encoding="utf-8"),
        "data": embedded(page_data(view)),
        "program": (PARTS / "compare.js").read_text(encoding="utf-8"),
    }
    template = (PARTS / "compare.html").read_text(encoding="utf-8")
    # In one pass, so that nothing in the data is taken for a place to fill
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], template)


def embedded(value: Any) -> str:
    """JSON that may stand in a <script> element: no `<`, no `&`, nothing beyond ASCII, no bare NaN."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def page_data(view: SweepView) -> dict[str, Any]:
    """What the page's program reads; legs are the best first, numbers that are not finite are text."""
    most = max(POINTS_MIN, POINTS_MAX // max(1, len(view.legs)))
    return {
        "name": view.job.name,
        "run": view.job.run,
        "metric": view.metric,
        "goal": view.goal,
        "parameters": view.parameters,
        "logarithmic": list(view.logarithmic),
        "winner": view.winner.id if view.winner else None,
        "spent": money(view.spent, view.currency, view.play),
        "unit": "(play)" if view.play else view.currency,
        "at": utc_z(view.now),
        "legs": [_leg(leg, view.goal, most) for leg in view.ranked],
    }


def _leg(leg: Leg, goal: Goal, most: int) -> dict[str, Any]:
    last, top = leg.last, leg.best(goal)
    return {
        "id": leg.id,
        "name": leg.name,
        "params": dict(leg.params),
        "state": leg.state.value,
        "reason": leg.reason,
        "last": _number(last.value) if last else None,
        "step": last.step if last else None,
        "best": top.value if top else None,
        "bestStep": top.step if top else None,
        "cost": float(leg.cost),
        "costText": money(leg.cost, "").strip() if leg.attempts else "–",
        "seconds": round(leg.seconds, 1),
        "time": span(leg.seconds) if leg.attempts else "–",
        "attempts": leg.attempts,
        "curve": [[report.step, _number(report.value)] for report in thinned(leg.curve, most)],
    }


def _number(value: float) -> float | str:
    return value if math.isfinite(value) else str(value)


def thinned(curve: Sequence[Report], most: int) -> list[Report]:
    """At most about `most` reports that look the same: the least and the greatest of every stretch, and the ends."""
    if len(curve) <= most:
        return list(curve)
    stretches = max(1, (most - 2) // 2)
    kept = {0, len(curve) - 1}
    for number in range(stretches):
        begin, end = number * len(curve) // stretches, (number + 1) * len(curve) // stretches
        stretch = [at for at in range(begin, end) if math.isfinite(curve[at].value)]
        if stretch:
            kept |= {min(stretch, key=lambda at: curve[at].value), max(stretch, key=lambda at: curve[at].value)}
    return [curve[at] for at in sorted(kept)]

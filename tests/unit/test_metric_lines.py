"""What a program may write where metrics are read: junk is no report, and never a fault of ours."""

from __future__ import annotations

import math
import re

import pytest

from orchestrator.log_lines import Metrics, metrics
from orchestrator.metric_lines import from_json, from_log

NESTED = '{"loss": ' + "[" * 1500
JUNK = [
    NESTED,
    NESTED + "]" * 1500 + "}",
    '{"loss": ' + "1" * 5000 + "}",
    "null",
    "[]",
    '{"loss": {"a": 1}}',
    "{",
    "\ud800",
]


@pytest.mark.parametrize("junk", JUNK, ids=range(len(JUNK)))
def test_a_line_that_is_no_report_hides_none_after_it(junk: str) -> None:
    assert list(from_json(f'{junk}\n{{"loss": 2, "step": 7}}', "loss", 0)) == [(7, 2.0)]
    assert metrics(f'{{"step": 7}}\n{junk}') in (Metrics(7.0, None, None), Metrics(None, None, None))


def test_numbers_that_are_none_are_told_as_such_and_steps_that_are_none_are_counted() -> None:
    text = '{"loss": 1e400, "step": 1e400}\n{"loss": NaN, "step": -1}\n{"loss": "x"}\n{"loss": null, "step": "3"}'
    (first, big), (second, nan), (third, none) = from_json(text, "loss", 0)
    assert (first, second, third) == (1, 2, 3)
    assert math.isinf(big)
    assert math.isnan(nan)
    assert math.isnan(none)
    found = list(from_log("loss=1e999\nloss=-\nloss=0.5", re.compile("loss=([-0-9.e]+)"), None, 0))
    assert found == [(1, math.inf), (2, 0.5)]

"""The page of `gpujob compare --html` in a real browser: it draws, sorts, filters, and runs no text of a sweep."""

from __future__ import annotations

import random
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from headless_browser import Browser, browser, find_browser

from orchestrator.cli.compare_page import page
from orchestrator.cli.sweeps import SweepView
from orchestrator.legs import Leg, LegState, Report
from orchestrator.model import Job

PROGRAM = find_browser()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium here; the page is only looked at as text (test_compare)"),
]

EVIL = '</script><script>window.broken = 1</script><img src=x onerror="window.broken = 2">'
STATES = (LegState.DONE, LegState.DONE, LegState.STOPPED, LegState.DONE, LegState.FAILED)


def leg(number: int, params: dict[str, str] | None = None, **more: Any) -> Leg:
    """Leg `l07` of lr 7e-4: the greater its number, the worse it is and the more it costs."""
    state = STATES[number % len(STATES)]
    chance = random.Random(number)
    steps = range(1, 41 if state is LegState.DONE else 11)
    told = tuple(Report(10 * n, 0.1 + number / 100 + 1 / n + 0.01 * chance.random(), float(n)) for n in steps)
    values: dict[str, Any] = {
        "state": state,
        "reports": told,
        "cost": Decimal(number + 1) / 10,
        "seconds": 60.0,
        "attempts": 1,
    }
    params = params or {
        "lr": f"{number + 1}e-4",
        "batch": ("16", "32", "64")[number % 3],
        "config": f"configs/{number % 2}.yaml",
    }
    return Leg(f"l{number:02d}", "", params, **(values | more))


def sweep(*legs: Leg, name: str = "tune", metric: str = "val_loss") -> SweepView:
    job = Job(f"{name}.1-x", name, 1, {"sweep": {}}, "h", "s", "/base", 0.0)
    return SweepView(job, legs, metric, "minimize", logarithmic=("lr",), now=1_800_000_000.0)


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    assert PROGRAM is not None
    with browser(PROGRAM, tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.fixture
def show(chromium: Browser, tmp_path: Path) -> Any:
    """Open the page of a sweep; nothing may have gone wrong, and nothing but the file been asked for."""

    def opened(view: SweepView, **window: Any) -> Browser:
        file = tmp_path / "page.html"
        file.write_text(page(view), encoding="utf-8")
        chromium.open(file, **window)
        assert chromium.errors == []
        assert chromium.requests == [file.as_uri()]
        return chromium

    return opened


FIRST_CELLS = "[...document.querySelectorAll('tbody tr:not(.off)')].map(row => row.cells[0].textContent)"


def count(chromium: Browser, selector: str) -> int:
    return int(chromium.value(f"document.querySelectorAll({selector!r}).length"))


def text(chromium: Browser, selector: str) -> str:
    return str(chromium.value(f"document.querySelector({selector!r}).textContent"))


def center(chromium: Browser, selector: str) -> tuple[float, float]:
    x, y = chromium.value(
        f"(() => {{ const node = document.querySelector({selector!r}); node.scrollIntoView({{block: 'center'}}); "
        "const box = node.getBoundingClientRect(); return [box.x + box.width / 2, box.y + box.height / 2]; })()"
    )
    return float(x), float(y)


def click(chromium: Browser, selector: str) -> None:
    x, y = center(chromium, selector)
    chromium.mouse("mousePressed", x, y)
    chromium.mouse("mouseReleased", x, y)


@pytest.mark.parametrize("legs", [1, 3, 40, 500])
def test_every_leg_is_in_every_chart(show: Any, legs: int) -> None:
    seen = show(sweep(*(leg(n) for n in range(legs))))
    assert count(seen, "tbody tr") == count(seen, "#parallel .wire") == count(seen, "#curves .wire") == legs
    assert count(seen, "#costs .bar") == legs
    assert text(seen, "tr.top td") == "★ l00"
    assert text(seen, "#winner").startswith("★ best: l00 · val_loss ")
    assert text(seen, "#winner code") == "gpujob pull tune/best"
    assert count(seen, "#parallel .catch") == 4  # three parameters and the metric
    assert all("NaN" not in path for path in seen.value("[...document.querySelectorAll('path')].map(p => p.outerHTML)"))


def test_text_of_the_sweep_stays_text(show: Any) -> None:
    legs = [leg(n, {EVIL: EVIL, "lr": "1"}, reason=EVIL) for n in range(3)]
    seen = show(sweep(*legs, name=EVIL, metric=EVIL))
    assert seen.value("window.broken === undefined")
    assert count(seen, "img") == 0
    assert count(seen, "script") == 2
    assert text(seen, "#title") == EVIL
    assert EVIL in text(seen, "tbody tr")


def test_a_click_on_a_head_sorts_and_another_turns_it_round(show: Any) -> None:
    rows = [leg(n, {"lr": lr}) for n, lr in enumerate(("1e-3", "9e-4", "1e-1", "none"))]
    seen = show(sweep(*rows, leg(4, {"batch": "16"})))
    heads = [str(head) for head in seen.value("[...document.querySelectorAll('th')].map(head => head.textContent)")]
    assert heads == ["leg", "rank", "lr", "batch", "val_loss", "step", "best", "state", "cost USD", "time", "attempts"]
    click(seen, "th:nth-child(3) button")
    assert seen.value(FIRST_CELLS) == ["l01", "★ l00", "l02", "l03", "l04"]  # numbers, words, nothing
    assert seen.value("document.querySelectorAll('th')[2].ariaSort") == "ascending"
    click(seen, "th:nth-child(3) button")
    assert seen.value(FIRST_CELLS) == ["l03", "l02", "★ l00", "l01", "l04"]
    assert text(seen, "th:nth-child(3)") == "lr ▼"


def drag(chromium: Browser, axis: str, begin: float, end: float) -> None:
    """Along an axis, from and to shares of its height from the top."""
    x, y, high = chromium.value(
        "(name => { const grip = [...document.querySelectorAll('.catch')].find(node => node.dataset.axis === name); "
        "grip.scrollIntoView({block: 'center'}); const box = grip.getBoundingClientRect(); "
        f"return [box.x + box.width / 2, box.y, box.height]; }})({axis!r})"
    )
    chromium.mouse("mousePressed", x, y + begin * high)
    for share in (0.5, 1.0):
        chromium.mouse("mouseMoved", x, y + (begin + share * (end - begin)) * high)
    chromium.mouse("mouseReleased", x, y + end * high)


def test_ranges_on_axes_keep_what_lies_in_all_of_them(show: Any) -> None:
    seen = show(sweep(*(leg(n) for n in range(12))))
    drag(seen, "batch", 0.0, 0.2)  # 64 is at the top
    assert seen.value(FIRST_CELLS) == ["l05", "l08", "l11", "l02"]
    assert text(seen, "#count") == "4 of 12 legs"
    assert count(seen, "#curves .wire:not(.off)") == count(seen, "#parallel .wire:not(.off)") == 4
    drag(seen, "config", 0.8, 1.0)  # 0.yaml is at the bottom
    assert seen.value(FIRST_CELLS) == ["l08", "l02"]
    drag(seen, "batch", 0.1, 0.1)  # a click takes the range away
    assert seen.value(FIRST_CELLS) == ["★ l00", "l06", "l08", "l10", "l02", "l04"]
    click(seen, "#clear")
    assert count(seen, "tbody tr:not(.off)") == 12
    assert text(seen, "#count") == ""
    assert seen.errors == []


def test_words_and_states_filter(show: Any) -> None:
    seen = show(sweep(*(leg(n) for n in range(10))))
    seen.value("(box => { box.value = 'batch=16 Done'; box.oninput({target: box}); })(document.getElementById('find'))")
    assert seen.value(FIRST_CELLS) == ["★ l00", "l03", "l06"]
    click(seen, "#clear")
    click(seen, "#states button:nth-child(1)")  # done
    assert seen.value(FIRST_CELLS) == ["l02", "l07", "l04", "l09"]
    assert seen.value("document.querySelector('#states button').ariaPressed") == "false"


def test_the_pointer_lights_one_leg_in_all_charts(show: Any) -> None:
    seen = show(sweep(*(leg(n) for n in range(5))))
    seen.mouse("mouseMoved", *center(seen, "tbody tr:nth-child(2)"))
    assert seen.value("[...document.querySelectorAll('.lit')].map(node => node.dataset.leg)") == ["1"] * 4
    seen.mouse("mouseMoved", *center(seen, "#costs .bar"))
    assert text(seen, "#tip b") == "★ l00"
    assert "lr=1e-4" in text(seen, "#tip")
    assert "0.10 USD" in text(seen, "#tip")


def test_a_diverged_leg_does_not_press_the_others_flat(show: Any) -> None:
    far = (Report(10, 0.5, 1.0), Report(20, 1e9, 2.0))
    seen = show(
        sweep(*(leg(n) for n in range(10)), leg(10, reports=far), leg(11, reports=(Report(10, float("nan"), 1.0),)))
    )
    high = (
        "Math.max(...[...document.querySelectorAll('#curves .tick[text-anchor=end]')].map(n => Number(n.textContent)))"
    )
    assert seen.value(high) < 3
    click(seen, "#full")
    assert seen.value(high) > 1e8
    assert count(seen, "#curves .wire") == 11  # one has no finite value


@pytest.mark.parametrize("dark", [False, True])
def test_it_fits_a_phone_in_light_and_dark(show: Any, dark: bool) -> None:
    params = {f"parameter_{n}": "a long value of words" * 3 for n in range(12)}
    seen = show(sweep(*(leg(n, {**params, "lr": f"{n}e-4"}) for n in range(5)), name="a" * 200), width=390, dark=dark)
    assert seen.value("document.documentElement.scrollWidth") == 390
    assert seen.value("document.querySelector('#curves').getBoundingClientRect().width") <= 390
    back = seen.value("getComputedStyle(document.body).backgroundColor")
    assert back == ("rgb(18, 22, 28)" if dark else "rgb(255, 255, 255)")


def test_sweeps_without_reports_or_legs_have_a_page_too(show: Any) -> None:
    waiting = [leg(n, reports=(), state=LegState.WAITING, cost=Decimal(0), attempts=0) for n in range(3)]
    seen = show(sweep(*waiting))
    assert count(seen, "tbody tr") == 3
    assert seen.value("document.getElementById('curves-box').hidden && document.getElementById('winner').hidden")
    seen = show(sweep(*waiting, metric=""))
    assert count(seen, "#parallel .catch") == 3
    seen = show(sweep())
    assert count(seen, "tbody tr") == 0


def test_a_page_that_breaks_is_noticed(chromium: Browser, tmp_path: Path) -> None:
    """The checks above can fail: errors and requests of a page are seen."""
    file = tmp_path / "broken.html"
    file.write_text("<script>nothing.at.all</script><img src='http://gpujob.invalid/x.png'>")
    chromium.open(file)
    assert any("nothing is not defined" in error for error in chromium.errors)
    assert "http://gpujob.invalid/x.png" in chromium.requests

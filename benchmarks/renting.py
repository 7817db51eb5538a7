"""Asking, planning and waiting for providers, measured: `./dev bench renting [PART...]`, about 4 minutes.

PARTS: offers, plan, lists, hung; without one all of them. The exit code is 1 when a bar is missed.

- offers: `gpujob offers` over the fakes of all five companies, each with a delay of its own before every answer;
  under 1 s beyond the slowest of them.
- plan: one spec over 5,000 offers of a market; under 0.3 CPU-s beyond the same plan over one offer.
- lists: 1,000 active jobs ask for no more listings than one.
- hung: jobs on machines of this host beside a provider whose every verb hangs; under a tick (1 s) longer than without.
"""

from __future__ import annotations

import contextlib
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

from _desk import Desk
from _measure import ROOT, Figure, run, say, show

sys.path.insert(1, str(ROOT / "tests/fakes"))

import _market
import _stuck
from aws_layer import AwsLayer
from fake_autodl import FakeAutoDl
from fake_lambda import FakeLambda
from fake_rest import FakeApi
from fake_runpod import FakeRunPod
from fake_vast import FakeVast
from main_job_scale import apply

from orchestrator.accounts import Accounts
from orchestrator.cli import client
from orchestrator.cli.offers import wishes_of
from orchestrator.clock import FakeClock
from orchestrator.model import Reason, Rental, RentalPhase
from orchestrator.store import Store
from providers.base import Ask, Listing, Offer
from providers.registry import get_provider

BEYOND_S, PLAN_CPU_S, TICK_S = 1.0, 0.3, 1.0
OFFERS, JOBS = 5000, 1000
#: Company -> (its fake, seconds before each answer, the variable of its key).
COMPANIES: dict[str, tuple[Callable[[], FakeApi], float, str]] = {
    "autodl": (FakeAutoDl, 0.1, "AUTODL_TOKEN"),
    "aws": (AwsLayer, 0.1, "AWS_LOGIN_KEY"),
    "lambda": (FakeLambda, 0.2, "LAMBDA_API_KEY"),
    "runpod": (FakeRunPod, 0.4, "RUNPOD_API_KEY"),
    "vast": (FakeVast, 0.5, "VAST_API_KEY"),
}
SPEC = {
    "gpu": "RTX-4090", "run": "python train.py ${GPUJOB_RESUME_FROM:+--resume}", "expected": "8h", "ttl": "12h",
    "checkpoint": {"pattern": "step_{n}"}, "providers": [_market.NAME],
}  # fmt: skip


# --- offers -----------------------------------------------------------------------------------------------------------


def late(company: FakeApi, seconds: float) -> None:
    """Let every answer of a fake come so much later."""
    verb = "answer" if isinstance(company, AwsLayer) else "serve"
    at_once = getattr(company, verb)

    def answer(*args: Any) -> Any:
        time.sleep(seconds)
        return at_once(*args)

    setattr(company, verb, answer)


def offers(rounds: int = 5) -> list[Figure]:
    """The command over all companies, against the slowest one's own answer in a process that has all imports."""
    with Desk() as desk, contextlib.ExitStack() as stack:
        desk.env |= {"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": "none", "GPUJOB_NO_KEYRING": "1"}
        blocks, alone = {}, {}
        for name, (make, seconds, variable) in COMPANIES.items():
            company = stack.enter_context(make())
            blocks[name] = company.settings()
            desk.env[variable] = company.key
            _asked(name, company, desk.base)  # moto's first answers and all imports
            late(company, seconds)
            alone[name] = _asked(name, company, desk.base)
            say(f"  {name} alone: {alone[name]:.2f} s")
        desk.home.make().config_file.write_text(_yaml({"providers": blocks}))
        told = [desk.cli("offers") for _ in range(rounds)]
    slowest = max(alone.values())
    assert all(f"{name}: 0 offers" not in told[-1].out for name in ("runpod", "vast", "lambda", "aws")), told[-1].out
    return [
        Figure("the slowest of five companies alone", (slowest,), "s"),
        Figure("gpujob offers, all five, beyond that", tuple(used.wall - slowest for used in told), "s", BEYOND_S),
        Figure("the same, processor time", tuple(used.cpu for used in told), "CPU-s"),
    ]


def _asked(name: str, company: FakeApi, home: Path) -> float:
    """Seconds of an adapter that knows nothing yet, for what `gpujob offers` asks."""
    began = time.monotonic()
    get_provider(name, company.config(home)).offers(Ask(gpus=wishes_of(None)))
    return time.monotonic() - began


def _yaml(document: Any) -> str:
    import yaml

    return yaml.safe_dump(document)


# --- plan -------------------------------------------------------------------------------------------------------------


def plan(rounds: int = 9) -> list[Figure]:
    """`gpujob plan` over many offers and over one, so that what both share falls out."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Desk(_stuck.install(Path(folder), _market.NAME, "_market:MarketProvider"), ROOT / "benchmarks") as desk,
    ):
        spec = str(desk.spec("train", **SPEC))
        used: dict[int, list[float]] = {OFFERS: [], 1: []}
        for number in range(rounds):
            for count, seconds in used.items():
                command = [sys.executable, "-m", "orchestrator.cli.main", "plan", spec]
                done = run(command, env={**desk.env, "MARKET_OFFERS": str(count)}, cwd=desk.project)
                if number:  # the first writes bytecode and the file of prices
                    seconds.append(done.cpu)
        assert "ask-" in done.out or "market" in done.out, done.out
    more = tuple(many - statistics.median(used[1]) for many in used[OFFERS])
    return [
        Figure(f"gpujob plan over {OFFERS} offers", tuple(used[OFFERS]), "CPU-s"),
        Figure("gpujob plan over one offer", tuple(used[1]), "CPU-s"),
        Figure(f"what {OFFERS} offers add", more, "CPU-s", PLAN_CPU_S),
    ]


# --- lists ------------------------------------------------------------------------------------------------------------


class Counted:
    """An account that counts how often it is listed."""

    name, account = "counted", "acc"

    def __init__(self) -> None:
        self.lists = 0

    def list(self, region: str) -> Listing:
        self.lists += 1
        return Listing()


def lists() -> list[Figure]:
    """An hour of ticks of the real accounts, with one live machine and with a thousand."""
    one, many = listed(1), listed(JOBS)
    return [
        Figure("list calls in an hour, 1 active job", (float(one),), "calls"),
        Figure(f"list calls in an hour, {JOBS} active jobs", (float(many),), "calls", one + 2.5),  # one at the edge
    ]


def listed(count: int) -> int:
    with tempfile.TemporaryDirectory() as folder:
        from orchestrator.home import Home

        home, clock, account = Home(state=Path(folder), config=Path(folder)), FakeClock(), Counted()
        accounts = Accounts(home, "dep", {}, clock, lambda message: None, make=lambda *_: account)  # type: ignore[arg-type,return-value]
        offer = Offer(account.name, account.account, "r1", "k", False, Decimal(1), "USD")
        base = Rental(
            id="gj-1", job="j-1", attempt=1, offer=offer, phase=RentalPhase.LIVE, end=2e9, wanted_end=2e9,
            end_reason=Reason.TTL, reserve=Decimal(1), nonce="n", created_at=0.0, ready_at=1.0,
        )  # fmt: skip
        rentals = [replace(base, id=f"gj-{number}", job=f"j-{number}") for number in range(count)]
        for _ in range(3600):
            accounts.list_due(rentals, ())
            clock.advance(1.0)
            time.sleep(0.0005)  # the region's own thread answers
        accounts.stop()
        time.sleep(0.1)
        return account.lists


# --- hung -------------------------------------------------------------------------------------------------------------


def hung(rounds: int = 5, beside: int = 8) -> list[Figure]:
    """Small jobs from `apply` to their outcome, without and with a provider beside them whose every verb hangs."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Desk(_stuck.install(Path(folder), _stuck.NAME, "_stuck:StuckProvider"), ROOT / "benchmarks") as desk,
    ):
        desk.home.make().config_file.write_text("limits: {machines: none}\n")
        for number in range(beside // 2):
            _apply(desk, f"held-{number}", "sleep 3600", _stuck.NAME)
        _apply(desk, "steady", "sleep 3600", "local")
        names = [f"held-{number}" for number in range(beside // 2)] + ["steady"]
        desk.until(lambda: all(_ordered(desk, name) for name in names), "all run")
        quiet = [_job(desk, f"quiet-{number}") for number in range(rounds)]
        with _hanging(desk.home.state / "stuck"):
            for number in range(beside // 2):
                _ask_cancel(desk, f"held-{number}")  # their destroy and their looks hang ...
            apply(desk, beside // 2, (_stuck.NAME,), "asks")  # ... and these hang at their prices
            time.sleep(2.0)
            beside_it = [_job(desk, f"beside-{number}") for number in range(rounds)]
            desk.kill_controller()
            began = time.monotonic()
            _ask_cancel(desk, "steady")
            desk.cli("ps")  # starts a controller, which must look at every region first
            desk.until(lambda: _decided(desk, "steady"), "the cancel is decided")
            restart = time.monotonic() - began
    usual = statistics.median(quiet)
    return [
        Figure("a job of `true`, no provider hangs", tuple(quiet), "s"),
        Figure(f"longer beside {beside} jobs of one that hangs", tuple(s - usual for s in beside_it), "s", TICK_S),
        Figure("a restart beside it, until another job's cancel is decided", (restart,), "s"),
    ]


@contextlib.contextmanager
def _hanging(file: Path) -> Iterator[None]:
    file.write_text("offers list get destroy\n")
    try:
        yield
    finally:
        file.unlink()


def _ask_cancel(desk: Desk, name: str) -> None:
    """As `gpujob cancel --now` asks, without its wait for the release."""
    with Store.open_requester(desk.home) as store:
        store.ask("cancel", {"job": store.find(name).job, "now": True})
    client.poke(desk.home)


def _apply(desk: Desk, name: str, program: str, provider: str) -> None:
    desk.cli("apply", str(desk.spec(name, run=program, providers=[provider])), "-y")


def _job(desk: Desk, name: str) -> float:
    """Seconds from `apply` to the outcome of a job that does nothing."""
    began = time.monotonic()
    _apply(desk, name, "true", "local")
    desk.cli("wait", name, "--for", "outcome", "--timeout", "3m")
    return time.monotonic() - began


def _ordered(desk: Desk, name: str) -> bool:
    with desk.books() as books:
        return any(run.ordered_at for run in books.assignments(books.find(name).job))


def _decided(desk: Desk, name: str) -> bool:
    with desk.books() as books:
        return books.job(books.find(name).job).outcome is not None


PARTS: dict[str, Callable[[], list[Figure]]] = {"offers": offers, "plan": plan, "lists": lists, "hung": hung}


def main(names: list[str]) -> int:
    figures: list[Figure] = []
    for name in names or PARTS:
        say(f"--- {name}")
        figures += PARTS[name]()
    return show(figures)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""estimate, breakeven, offers, plan and report as processes: streams, exit codes, no controller, and a plugin whose
prices outlive its network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))  # cli_books: the same books as in the unit tests

Cli = Callable[..., subprocess.CompletedProcess[str]]

PLUGIN = """
import os
from decimal import Decimal
from providers.base import Caps, Offer
from providers.errors import Ambiguous


class Acme:
    name = "acme"
    account = "a"
    caps = Caps(dead_statuses=frozenset({"gone"}), self_end="destroys", server_ttl=True, boot_hook="every_boot")

    def __init__(self, config):
        pass

    def regions(self):
        return ("eu",)

    def offers(self, ask):
        if os.environ.get("ACME_DOWN"):
            raise Ambiguous("no route to acme", provider="acme")
        return (
            Offer("acme", "a", "eu", "k1", False, Decimal("0.90"), "USD", gpu="RTX-4090", gpu_count=1, vram_gb=24,
                  min_billing_s=3600),
            Offer("acme", "a", "eu", "k2", False, Decimal("1.00"), "USD", gpu="RTX-4090", gpu_count=1, vram_gb=24),
        )

    def create(self, offer, tag, end, boot): ...
    def list(self, region): ...
    def get(self, ref): ...
    def destroy(self, ref): ...
    def set_expiry(self, ref, at): ...
"""
SPEC = "name: short\ngpu: RTX-4090\nproviders: [acme]\nexpected: {expected}\nmax_price: 5 USD\nrun: python train.py\n"


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    """gpujob with a provider of another distribution on its path."""
    site = tmp_path / "site"
    info = site / "acme-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "acme_gpus.py").write_text(PLUGIN, encoding="utf-8")
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[gpujob.providers]\nacme = acme_gpus:Acme\n", encoding="utf-8")
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    env = {**kept, "GPUJOB_HOME": str(tmp_path / "home"), "PYTHONPATH": f"{ROOT}:{site}", "GPUJOB_NO_KEYRING": "1"}

    def run(*words: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "orchestrator.cli.main", *words],
            capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False, env={**env, **more},
        )  # fmt: skip

    return run


def document(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    assert (done.returncode, done.stderr) == (code, "")
    return json.loads(done.stdout)


def test_questions_before_renting_leave_nothing_behind(cli: Cli, tmp_path: Path) -> None:
    assert document(cli("estimate", "--model", "7b", "--dtype", "int4", "-o", "json"))["parts"][0]["gb"] == 3.5
    found = document(cli("breakeven", "--own-monthly", "46853", "--hourly", "80..200", "-o", "json"))
    assert [row["percent"] for row in found["break_even"]] == [81.3, 54.2, 40.7, 32.5]
    assert not (tmp_path / "home").exists()


def test_the_minimum_of_an_hour_decides_for_a_short_job_and_not_for_a_long_one(cli: Cli, tmp_path: Path) -> None:
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC.format(expected="10m"), encoding="utf-8")
    found = document(cli("plan", "job.yaml", "-o", "json"))
    assert (found["chosen"]["hourly"]["amount"], found["expected_cost"]["amount"]) == ("1.00", "0.333334")
    spec.write_text(SPEC.format(expected="5h"), encoding="utf-8")
    found = document(cli("plan", "job.yaml", "-o", "json"))
    assert (found["chosen"]["hourly"]["amount"], found["expected_cost"]["amount"]) == ("0.90", "4.650000")


def test_prices_outlive_the_network(cli: Cli) -> None:
    before = document(cli("offers", "--provider", "acme", "-o", "json"))
    assert [each["hourly"]["amount"] for each in before["offers"]] == ["0.90", "1.00"]
    after = document(cli("offers", "--provider", "acme", "-o", "json", ACME_DOWN="1"))
    assert [each["hourly"]["amount"] for each in after["offers"]] == ["0.90", "1.00"]
    (provider,) = after["providers"]
    assert (provider["stored"], provider["at"]) == (True, before["providers"][0]["at"])
    assert "no route to acme" in provider["trouble"]
    done = cli("offers", "--provider", "acme", "--provider", "local", "--gpu", "4090", ACME_DOWN="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert "local" in done.stdout
    assert "acme: 2 offers, prices of 20" in done.stdout


def test_never_asked_and_no_network_is_a_providers_failure(cli: Cli) -> None:
    assert document(cli("offers", "--provider", "acme", "-o", "json", ACME_DOWN="1"), 3)["offers"] == []
    assert cli("offers").returncode == 2  # nobody is configured
    done = cli("offers", "--provider", "acmee")
    assert done.returncode == 2
    assert "did you mean acme?" in done.stderr


def test_a_report_adds_up(cli: Cli, tmp_path: Path) -> None:
    from decimal import Decimal

    from cli_books import Books, home_at, writer

    home = tmp_path / "home"
    with writer(home_at(home)) as store:
        for number, name in enumerate(("one", "two")):
            books = Books(store, name, now=1_794_300_000.0 + number * 10_000)
            rental = books.rent(provider="acme", hourly="0.90")
            books.run(rental)
            store.bill(rental, "instance", Decimal("0.90"), books.now + 3500)
            store.bill(rental, "egress", Decimal("0.10"), books.now + 3500)
            books.exit()
            books.decide_done(rental)
    found = document(cli("report", "--month", "2026-11", "-o", "json"))
    sums = {name: [each["amount"] for each in amounts] for name, amounts in found["classes"].items()}
    assert sums == {"instances": ["1.80"], "storage": [], "traffic": ["0.20"], "other": []}
    assert found["total"] == [{"amount": "2.00", "currency": "USD", "play": False}]
    assert sum(found["phases_s"].values()) == pytest.approx(sum(each["billed_s"] for each in found["machines"]))
    assert [each["name"] for each in found["jobs"]] == ["one", "two"]
    done = cli("report", "--month", "2026-11")
    assert (done.returncode, done.stderr) == (0, "")
    assert "no samples of the cards were recorded" in done.stdout

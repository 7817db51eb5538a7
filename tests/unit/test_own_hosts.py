"""A machine of one's own that nobody switches off goes on costing, and the end of a job says so."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from orchestrator.cli.own_hosts import still_yours
from orchestrator.cli.phases import kept_lines
from orchestrator.home import Home
from providers.base import Offer

HOSTS = """
hosts:
  lab: {"host": "198.51.100.7", "port": 22, "user": "root", "gpu": "RTX-4090", "price": "1.98 CNY", "release": "none"}
  off: {"host": "198.51.100.8", "port": 22, "user": "root", "price": "1.98 CNY", "release": "poweroff"}
  mine: {"host": "198.51.100.9", "port": 22, "user": "root"}
  plain: {"host": "198.51.100.10", "port": 22, "user": "root", "price": "0.5 USD"}
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home.from_env({"GPUJOB_HOME": str(tmp_path), "HOME": str(tmp_path)}).make()
    found.config_file.write_text(HOSTS)
    return found


def used(*names: str, provider: str = "ssh") -> Any:
    offers = [Offer(provider, "own", name, name, False, Decimal("1.98"), "CNY") for name in names]
    return SimpleNamespace(rentals=[SimpleNamespace(offer=offer) for offer in offers])


def test_only_hosts_with_a_price_that_nothing_switches_off_go_on_costing(home: Home) -> None:
    assert still_yours(home) == [
        "lab is yours and still bills 1.98 CNY/h until you release it",
        "plain is yours and still bills 0.50 USD/h until you release it",
    ]


def test_the_end_of_a_job_names_the_hosts_that_it_used(home: Home) -> None:
    assert kept_lines(home, used("lab", "off")) == ["lab is yours and still bills 1.98 CNY/h until you release it"]
    assert kept_lines(home, used("off", "mine")) == []
    assert kept_lines(home, used("lab", provider="aws")) == []


def test_a_config_that_is_broken_hides_no_job(home: Home) -> None:
    home.config_file.write_text("hosts: [")
    assert still_yours(home) == []

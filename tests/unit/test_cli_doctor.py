"""doctor: each finding with its cure, and a check that breaks is itself a finding."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from cli_books import Books, home_at, writer

from orchestrator.cli import doctor, main
from orchestrator.home import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path / "h"))
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    return home_at(tmp_path / "h")


def levels(home: Home, check: str) -> list[str]:
    return [finding.level for finding in doctor.examine(home) if finding.check == check]


def test_a_missing_program_names_its_packages() -> None:
    found = list(doctor.program_findings({"ssh": "/usr/bin/ssh", "rsync": None, "bwrap": None}))
    assert [(f.level, f.text.split()[0]) for f in found] == [("ok", "ssh"), ("fail", "rsync"), ("warn", "bwrap")]
    assert "apt install rsync · dnf install rsync · brew install rsync" in found[1].next
    assert "brew" not in found[2].next


def test_a_top_level_name_of_two_distributions_is_refused() -> None:
    assert [f.level for f in doctor.package_findings({"providers": ["gpujob"], "jobspecs": ["gpujob"]})] == ["ok"]
    (found,) = doctor.package_findings({"providers": ["gpujob", "other-thing"], "orchestrator": ["gpujob"]})
    assert (found.level, "other-thing" in found.text) == ("fail", True)


def test_a_healthy_home(home: Home) -> None:
    with writer(home):
        pass
    assert levels(home, "books") == ["ok"]
    assert levels(home, "controller") == ["ok"]
    assert levels(home, "state") == ["ok"]
    assert levels(home, "config") == ["ok"]
    assert levels(home, "clock") == ["ok"]


def test_open_rentals_without_a_controller_are_a_failure(home: Home) -> None:
    with writer(home) as store:
        Books(store).rent()
    (found,) = [f for f in doctor.examine(home) if f.check == "controller"]
    assert found.level == "fail"
    assert "gpujob ps" in found.next


def test_a_config_that_others_may_write_and_one_that_is_wrong(home: Home) -> None:
    home.config_file.write_text("owner: me\n")
    os.chmod(home.config_file, 0o666)
    assert levels(home, "config") == ["ok", "warn"]
    home.config_file.write_text("ownr: me\n")
    assert levels(home, "config")[0] == "fail"


def test_damaged_books_are_a_finding_and_exit_2(home: Home, capsys: pytest.CaptureFixture[str]) -> None:
    home.database.write_bytes(b"x" * 8192)
    assert main.main(["doctor", "-o", "json"]) == 2
    found = {each["check"]: each for each in json.loads(capsys.readouterr().out)}
    assert found["books"]["level"] == "fail"
    assert str(home.database) in found["books"]["text"]


def test_a_clock_before_the_installation_is_wrong(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: 1_000_000_000.0)
    assert levels(home, "clock") == ["fail"]


def test_a_check_that_breaks_is_a_finding(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: object) -> object:
        raise RuntimeError("no mounts")

    monkeypatch.setattr("orchestrator.store.place.network_filesystem", broken)
    (found,) = [f for f in doctor.examine(home) if f.check == "folders"]
    assert (found.level, "no mounts" in found.text) == ("fail", True)


def test_a_configured_provider_without_its_key_is_named(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GPUJOB_NO_KEYRING", "1")
    monkeypatch.setenv("VAST_API_KEY", "a-key")
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    assert levels(home, "keys") == []
    home.make().config_file.write_text("providers: {runpod: {}, vast: {}, local: {}}\n")
    found = {f.text.split()[0]: (f.level, f.next) for f in doctor.examine(home) if f.check == "keys"}
    assert found == {"runpod": ("warn", "gpujob login runpod"), "vast:": ("ok", "")}
    home.config_file.write_text("ownr: me\n")
    assert (levels(home, "keys"), levels(home, "config")) == ([], ["fail"])

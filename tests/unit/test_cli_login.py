"""`login`: a key is tried before it is kept, kept where the controller finds it, and never shown."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.config import load_config
from orchestrator.credentials import logged_in, provider_config
from orchestrator.home import Home
from providers import registry
from providers.base import Listing, ProviderConfig
from providers.errors import Ambiguous, AuthFailed

REAL = registry.get_provider
KEY = "rp-0123456789-the-key"


class Tried:
    """An adapter that takes one key."""

    good = KEY
    trouble: Exception | None = None

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config

    def regions(self) -> tuple[str, ...]:
        return ("global",)

    def list(self, region: str) -> Listing:
        if Tried.trouble is not None:
            raise Tried.trouble
        if self.config.secret("RUNPOD_API_KEY") != Tried.good:
            raise AuthFailed("runpod refused list (401): missing bearer token")
        return Listing()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.setenv("GPUJOB_NO_KEYRING", "1")
    monkeypatch.delenv("RUNPOD_API_KEY", raising=False)
    monkeypatch.setattr(registry, "get_provider", lambda name, config: Tried(config))
    monkeypatch.setattr(Tried, "trouble", None)
    return Home.from_env()


def login(monkeypatch: pytest.MonkeyPatch, *words: str, typed: str = KEY + "\n") -> int:
    monkeypatch.setattr(sys, "stdin", io.StringIO(typed))
    return main(["login", *words])


def test_a_key_that_works_is_kept_privately_and_makes_its_provider_configured(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert load_config(home).providers == {}
    assert login(monkeypatch, "runpod") == 0
    kept = home.secret_store() / "RUNPOD_API_KEY"
    assert (kept.read_text(), kept.stat().st_mode & 0o777) == (KEY, 0o600)
    out, err = capsys.readouterr()
    assert KEY not in out + err
    assert "runpod took the key; it is kept in" in out + err
    assert logged_in(home) == ("runpod",)
    assert load_config(home).providers == {"runpod": {}}
    assert provider_config(home, "dep", {}).secret("RUNPOD_API_KEY") == KEY


def test_settings_in_the_config_stay(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    home.make().config_file.write_text("providers: {runpod: {regions: [EU-RO-1]}}\n")
    assert login(monkeypatch, "runpod") == 0
    assert load_config(home).providers == {"runpod": {"regions": ["EU-RO-1"]}}


@pytest.mark.parametrize("trouble", [None, Ambiguous("runpod did not answer to list: timed out")])
def test_a_key_that_was_not_taken_is_not_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], trouble: Exception | None
) -> None:
    monkeypatch.setattr(Tried, "trouble", trouble)
    assert login(monkeypatch, "runpod", typed="wrong\n") == 3
    err = capsys.readouterr().err
    assert "nothing was kept" in err
    assert "Traceback" not in err
    assert ("timed out" in err) == (trouble is not None)
    assert logged_in(home) == ()


def test_unchecked_keeps_without_asking(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tried, "trouble", Ambiguous("no network"))
    assert login(monkeypatch, "runpod", "--unchecked") == 0
    assert logged_in(home) == ("runpod",)


def test_the_environment_wins_and_login_says_so(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RUNPOD_API_KEY", "another")
    assert login(monkeypatch, "runpod") == 0
    assert "wins while it is set" in "".join(capsys.readouterr())
    assert provider_config(home, "dep", {}).secret("RUNPOD_API_KEY") == "another"


def test_forget_removes_it(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    login(monkeypatch, "runpod")
    assert login(monkeypatch, "runpod", "--forget") == 0
    assert logged_in(home) == ()
    assert login(monkeypatch, "runpod", "--forget") == 2
    assert "no key of runpod is kept" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "said"), [("local", "has no key"), ("nobody", "no provider is called")])
def test_a_provider_without_a_key_is_named(
    name: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert login(monkeypatch, name) == 2
    err = capsys.readouterr().err
    assert said in err
    assert "gpujob login autodl|aws|lambda|runpod|vast" in err


def test_an_empty_key_is_refused(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    assert login(monkeypatch, "runpod", typed="\n") == 2
    assert logged_in(home) == ()


def test_json_names_where_it_is_kept(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert login(monkeypatch, "runpod", "-o", "json") == 0
    said: dict[str, Any] = json.loads(capsys.readouterr().out)
    where = str(home.secret_store() / "RUNPOD_API_KEY")
    assert said == {"provider": "runpod", "variable": "RUNPOD_API_KEY", "kept_in": where, "checked": True}


def test_providers_shows_what_all_built_ins_can_do_without_a_network_or_a_key(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "get_provider", REAL)
    assert main(["providers", "-o", "json"]) == 0
    found = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert set(registry.BUILT_IN) <= set(found)
    assert all(found[name]["trouble"] is None for name in registry.BUILT_IN)
    assert (found["vast"]["spot"], found["runpod"]["spot"], found["lambda"]["self_end"]) == (True, False, "nothing")

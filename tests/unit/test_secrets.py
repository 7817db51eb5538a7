"""Secrets: where they come from, how they are kept, and that nothing of them is left."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from orchestrator import secrets
from orchestrator.cli.exits import CliError
from orchestrator.cli.handover import handed_over
from orchestrator.home import Home
from orchestrator.secrets import SecretError


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv(secrets.NO_KEYRING, "1")
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


class Backend:
    """A keyring in memory."""

    priority = 5

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}


def use_keyring(monkeypatch: pytest.MonkeyPatch, backend: object) -> None:
    module = types.ModuleType("keyring")
    backends = types.ModuleType("keyring.backends")
    fail, null = types.ModuleType("fail"), types.ModuleType("null")
    fail.Keyring = type("Keyring", (), {})  # type: ignore[attr-defined]
    null.Keyring = type("Keyring", (), {})  # type: ignore[attr-defined]
    backends.fail, backends.null = fail, null  # type: ignore[attr-defined]
    module.backends = backends  # type: ignore[attr-defined]
    module.get_keyring = lambda: backend if backend else fail.Keyring()  # type: ignore[attr-defined]
    if isinstance(backend, Backend):
        module.set_password = lambda s, n, v: backend.kept.update({(s, n): v})  # type: ignore[attr-defined]
        module.get_password = lambda s, n: backend.kept.get((s, n))  # type: ignore[attr-defined]
        module.delete_password = lambda s, n: backend.kept.pop((s, n))  # type: ignore[attr-defined]
    monkeypatch.delenv(secrets.NO_KEYRING)
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.backends", backends)


def test_the_environment_wins_over_the_store_and_missing_ones_are_named(home: Home) -> None:
    secrets.set_secret(home, "HF_TOKEN", "stored")
    secrets.set_secret(home, "WANDB", "kept")
    found = secrets.resolve(["HF_TOKEN", "WANDB", "NOWHERE", "EMPTY"], home, {"HF_TOKEN": "given", "EMPTY": ""})
    assert found.values == {"HF_TOKEN": "given", "WANDB": "kept"}
    assert found.origin == {"HF_TOKEN": "environment", "WANDB": "store"}
    assert found.missing == ("NOWHERE", "EMPTY")


def test_the_store_keeps_private_files_and_lists_only_names(home: Home) -> None:
    where = secrets.set_secret(home, "B", "line 1\nline 2\n")
    secrets.set_secret(home, "A", "é")
    assert Path(where).stat().st_mode & 0o777 == 0o600
    assert home.secret_store().stat().st_mode & 0o777 == 0o700
    assert secrets.names(home) == ("A", "B")
    assert secrets.get_secret(home, "B") == "line 1\nline 2\n"
    assert secrets.remove(home, "B") is True
    assert secrets.remove(home, "B") is False
    assert secrets.names(home) == ("A",)


@pytest.mark.parametrize("name", ["", "../x", "1A", "A B", "A=B", "A\n", "a" * 200])
def test_a_name_that_is_no_variable_is_refused(home: Home, name: str) -> None:
    with pytest.raises(SecretError, match="is no name of a secret"):
        secrets.set_secret(home, name, "v")


def test_an_empty_value_is_refused(home: Home) -> None:
    with pytest.raises(SecretError, match="is empty"):
        secrets.set_secret(home, "A", "")


def test_a_jobs_copies_live_until_its_end(home: Home) -> None:
    secrets.keep(home, "digits.1-k3v9", {"A": "one", "B": "two"})
    secrets.keep(home, "digits.1-k3v9", {"A": "newer"})
    assert secrets.load(home, "digits.1-k3v9") == {"A": "newer", "B": "two"}
    files = list(home.secrets("digits.1-k3v9").iterdir())
    assert sorted(file.stat().st_mode & 0o777 for file in files) == [0o600, 0o600]
    secrets.forget(home, "digits.1-k3v9")
    secrets.forget(home, "digits.1-k3v9")
    assert not home.secrets("digits.1-k3v9").exists()
    assert secrets.load(home, "digits.1-k3v9") == {}


def test_a_usable_keyring_holds_the_value_and_no_file_does(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    secrets.set_secret(home, "OLD", "in a file")
    backend = Backend()
    use_keyring(monkeypatch, backend)
    assert secrets.set_secret(home, "OLD", "moved") == "the system's keyring"
    assert backend.kept == {("gpujob", "OLD"): "moved"}
    assert not (home.secret_store() / "OLD").exists()
    assert secrets.names(home) == ("OLD",)
    assert secrets.get_secret(home, "OLD") == "moved"
    assert secrets.remove(home, "OLD") is True
    assert backend.kept == {}
    assert secrets.names(home) == ()


def test_a_keyring_that_is_gone_is_named_with_the_cure(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    use_keyring(monkeypatch, Backend())
    secrets.set_secret(home, "A", "value")
    use_keyring_off = pytest.MonkeyPatch()
    with use_keyring_off.context() as patch:
        patch.setenv(secrets.NO_KEYRING, "1")
        with pytest.raises(SecretError, match="export A"):
            secrets.get_secret(home, "A")


def test_a_keyring_without_a_backend_falls_back_to_files(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    use_keyring(monkeypatch, None)
    assert secrets.set_secret(home, "A", "value") == str(home.secret_store() / "A")


def test_messages_are_masked(home: Home) -> None:
    assert secrets.mask("the token hunter22 failed", ["hunter22"]) == "the token ******** failed"


@pytest.mark.parametrize(("code", "kept"), [(2, False), (3, True), (6, True)])
def test_values_stay_while_their_request_may_still_be_answered(home: Home, code: int, kept: bool) -> None:
    with pytest.raises(CliError), handed_over(home, {"TOKEN": "value"}) as spool:
        raise CliError("no answer", code=code)
    assert (secrets.load(home, spool) == {"TOKEN": "value"}) is kept

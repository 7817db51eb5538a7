"""`audit`, `adopt` and `prune` with a scripted provider: what is shown, what is asked of the controller, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from cli_books import Books as Driven
from cli_books import home_at, writer
from cli_controller import ScriptedController

from orchestrator.cli import adopt, audit
from orchestrator.cli.main import main
from orchestrator.home import Home
from providers.base import Caps, Instance, Listing, Ref, Tag
from providers.errors import Ambiguous

CAPS = Caps(dead_statuses=frozenset({"dead"}), self_end="nothing", server_ttl=True, boot_hook="every_boot")
Listings = Callable[[], Listing]


class Scripted:
    """A provider that lists what the test says, one answer a call; the last one stays."""

    name, account, caps = "local", "a", CAPS

    def __init__(self, *answers: Listing | Exception) -> None:
        self.answers = list(answers)

    def regions(self) -> tuple[str, ...]:
        return ("host",)

    def list(self, region: str) -> Listing:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


def machine(name: str, rental: str, deployment: str = "d3p1oy", **more: Any) -> Instance:
    ref = Ref("local", "a", "host", name)
    return Instance(
        ref, "running", Tag(deployment, rental, "digits-1-abcd"), hourly=Decimal("2.5"), currency="USD", **more
    )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose deployment is known; two looks follow each other without a pause."""
    monkeypatch.setenv("GPUJOB_HOME", str(tmp_path))
    monkeypatch.setattr(adopt, "BETWEEN_LOOKS_S", 0.0)
    home = home_at(tmp_path)
    home.deployment_file.write_text(json.dumps({"deployment": "d3p1oy", "epoch": 1000, "rentals": 0}))
    return home


def provide(monkeypatch: pytest.MonkeyPatch, *answers: Listing | Exception) -> None:
    provider = Scripted(*answers)
    monkeypatch.setattr("providers.registry.get_provider", lambda name, config: provider)


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(words)
    said = capsys.readouterr()
    return code, said.out, said.err


def test_all_known_is_clean(home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with writer(home) as store:
        rental = Driven(store).rent()
    provide(monkeypatch, Listing((machine(f"i-{rental}", rental),)))
    monkeypatch.setattr("orchestrator.cli.client.wake", lambda home: None)
    code, out, _ = run(capsys, "audit", "-o", "json")
    shown = json.loads(out)
    assert (code, shown["clean"], shown["books"], shown["missing"]) == (0, True, "ok", [])
    assert [(each["standing"], each["phase"], each["hourly"]["amount"]) for each in shown["found"]] == [
        ("known", "live", "2.5")
    ]


def test_a_provider_that_does_not_answer_is_never_clean(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provide(monkeypatch, Ambiguous("503 from the list", provider="local"))
    code, out, err = run(capsys, "audit")
    assert code == 3
    assert "local/host could not be asked: 503 from the list" in err
    assert "as far as could be asked" in out
    for verb in (("adopt", "--all", "-y"), ("prune", "-y"), ("prune", "--dry-run")):
        code, _, err = run(capsys, *verb)
        assert (code, "nothing was done" in err) == (3, True)


def test_what_bills_unknown_is_said_with_its_price_and_the_next_step(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provide(monkeypatch, Listing((machine("i-1", "gj-d3p1oy-a"), machine("i-2", "gj-d3p1oy-b"))))
    code, out, err = run(capsys, "audit")
    assert code == 3
    assert out.splitlines()[0].split() == ["STANDING", "WHERE", "ID", "JOB", "OWNER", "PER", "HOUR", "ENDS", "KEY"]
    assert max(len(line) for line in out.splitlines()) <= 100
    assert "2 unknown to the books, 5.00 USD/h" in err
    assert "gpujob adopt --all" in err


def test_prune_asks_only_for_what_two_looks_show_under_our_tag(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One is born between the looks, one ends, one is another deployment's: none of them is named."""
    ours, ended, born = machine("i-1", "gj-d3p1oy-a"), machine("i-2", "gj-d3p1oy-b"), machine("i-3", "gj-d3p1oy-c")
    alien = machine("i-9", "gj-d3p1oy-z", deployment="0ther1")
    looks = (Listing((ours, ended, alien)), Listing((ours, born, alien)))
    provide(monkeypatch, *looks)
    code, out, _ = run(capsys, "prune", "--dry-run", "-o", "json")
    assert (code, json.loads(out)) == (0, {"would_release": ["i-1"]})
    provide(monkeypatch, *looks)

    def answer(args: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"ok": True, "taken": [], "accepted": False, "ended": []}

    with ScriptedController(home, {"prune": answer}) as controller:
        code, _, _ = run(capsys, "prune", "-y")
    assert code == 0
    ((verb, args),) = controller.asked
    assert (verb, args["deployment"]) == ("prune", "d3p1oy")
    assert [(each["id"], each["how"]) for each in args["machines"]] == [("i-1", "destroy")]


def test_nothing_happens_without_a_yes(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provide(monkeypatch, Listing((machine("i-1", "gj-d3p1oy-a"),)))
    for verb in (("adopt", "--all"), ("prune",)):
        code, _, err = run(capsys, *verb)
        assert (code, "add -y" in err) == (2, True)
    assert not home.database.exists()  # nothing was even asked


def test_adopt_needs_machines_or_all_and_names_only_what_is_unknown(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    provide(monkeypatch, Listing((machine("i-9", "gj-d3p1oy-z", deployment="0ther1"),)))
    assert run(capsys, "adopt")[0] == 2
    assert run(capsys, "adopt", "i-9", "--all")[0] == 2
    code, _, err = run(capsys, "adopt", "i-9", "-y")
    assert (code, "i-9 is no machine under our tag" in err) == (2, True)
    code, out, _ = run(capsys, "adopt", "--all", "-y")
    assert (code, out) == (0, "nothing under our tag is unknown to the books\n")


def test_a_machine_with_our_key_that_does_not_answer_is_left_by_all(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.rental("gj-d3p1oy-a").mkdir(parents=True)
    (home.rental("gj-d3p1oy-a") / "id_ed25519").write_text("key")
    provide(monkeypatch, Listing((machine("i-1", "gj-d3p1oy-a"),)))  # no address is shown, so it cannot be asked
    code, out, err = run(capsys, "adopt", "--all", "-y", "-o", "json")
    assert (code, json.loads(out)["left"]) == (3, ["i-1"])
    assert "the provider shows no address of it; `gpujob adopt i-1` keeps it to its own end" in err


def test_an_unreadable_database_is_said_and_machines_are_found_all_the_same(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    home.database.write_bytes(b"")
    provide(monkeypatch, Listing((machine("i-1", "gj-d3p1oy-a"),)))
    monkeypatch.setattr("orchestrator.cli.client.wake", lambda home: None)
    code, out, _ = run(capsys, "audit", "-o", "json")
    shown = json.loads(out)
    assert (code, shown["books"], shown["found"][0]["standing"]) == (3, "lost", "unknown")
    assert "0 bytes" in shown["books_trouble"]


def test_books_are_read_after_the_listing(
    home: Home, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine that was made while we listed has its row by then: it is known."""
    made: list[str] = []

    class Late(Scripted):
        def list(self, region: str) -> Listing:
            with writer(home) as store:
                made.append(Driven(store).rent())
            return Listing((machine(f"i-{made[-1]}", made[-1]),))

    late = Late()
    monkeypatch.setattr("providers.registry.get_provider", lambda name, config: late)
    seen = audit.take_audit(home)
    assert [each.standing for each in seen.found] == ["known"]

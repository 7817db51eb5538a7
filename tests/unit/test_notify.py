"""Notifications: what is news, to whom, once an hour, at least once over restarts, and what a failing target costs."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from loop_desk import Desk

from jobspecs.problems import SpecErrors
from orchestrator import actions as act
from orchestrator.cli import doctor, main, specs
from orchestrator.cli.exits import CliError
from orchestrator.cli.vitals import notice_words
from orchestrator.config import load_config
from orchestrator.home import Home
from orchestrator.model import Outcome, Reason
from orchestrator.notify import RETRY_S, STUCK_S, Notifier
from orchestrator.store import Store
from orchestrator.store.notices import News
from orchestrator.targets import NotSent, Target, send

SECRET = "json://user:t0psecret@127.0.0.1:9/hook"


class Post:
    """Takes messages, or refuses them as told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, str, str]] = []
        self.refuse: Exception | None = None
        self.hang: threading.Event | None = None

    def __call__(self, target: Target, title: str, body: str) -> None:
        if self.hang is not None:
            self.hang.wait(20.0)
        if self.refuse is not None:
            raise self.refuse
        self.told.append((target.url, title, body))


class Office(Desk):
    """A desk whose config has two targets."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        text = f"notify:\n  me: {{url: '{SECRET}'}}\n  team: {{url: 'json://team', events: [outcome]}}\n"
        self.home.config_file.write_text(text)
        self.post = Post()
        self.loop.notifier = Notifier(self.loop, self.post)
        self.settle()

    def settle(self, after: float = 2.0) -> None:
        """Turn until what was started has come back."""
        self.turn(after=after)
        for thread in threading.enumerate():
            if thread.name.startswith("notify-"):
                thread.join(5.0)
        self.turn(after=2.0)

    def done(self, name: str = "train") -> None:
        self.write(self.job(name).id, act.SetOutcome(Outcome.DONE, Reason.DONE))
        self.settle()


@pytest.fixture
def office(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Office]:
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    with Office(tmp_path) as office:
        yield office


def titles(office: Office) -> list[str]:
    return [title for _, title, _ in office.post.told]


def test_an_outcome_is_told_to_the_targets_that_the_job_names(office: Office) -> None:
    office.rent(spec={"notify": ["me", "team"]})
    office.done()
    assert sorted(office.post.told) == [
        (url, "train is done", "results: /here/results\ngpujob describe train") for url in ("json://team", SECRET)
    ]
    office.settle()
    assert len(office.post.told) == 2


def test_without_notify_nobody_is_told(office: Office) -> None:
    office.rent()
    office.done()
    assert office.post.told == []


def test_a_target_hears_only_the_events_that_it_wants(office: Office) -> None:
    office.rent(spec={"notify": ["team"]})
    office.loop.alarm(office.job().id, act.Alarm("stalled", "no step for 31m"))
    office.settle()
    assert office.post.told == []
    office.done()
    assert titles(office) == ["train is done"]


def test_an_alarm_is_told_once_an_hour_whatever_the_machine(office: Office) -> None:
    office.rent(spec={"notify": ["me"]})
    for rental in ("gj-1", "gj-2"):
        office.loop.alarm(office.job().id, act.Alarm("stalled", f"no step on {rental}", rental))
    office.loop.alarm(office.job().id, act.Alarm("release-slow", "still bills"))
    office.settle()
    assert titles(office) == ["train: stalled", "train: release-slow"]
    assert office.post.told[0][2] == "no step on gj-1\ngpujob describe train"
    office.clock.advance(3700)
    office.loop.alarm(office.job().id, act.Alarm("stalled", "no step again"))
    office.settle()
    assert titles(office)[2:] == ["train: stalled"]


def test_a_reclaim_and_a_wait_are_told(office: Office) -> None:
    rental = office.rent(spec={"notify": ["me"]})
    office.write(office.job().id, act.Release(rental.id, Reason.INTERRUPTED, "outbid", interrupted=True))
    office.write(office.job().id, act.WaitForCapacity())
    office.write(office.job().id, act.WaitForCapacity(clear=True))
    office.settle()
    assert titles(office)[:2] == ["train: its machine was taken", "train waits for a machine"]
    assert "outbid" in office.post.told[0][2]


def test_what_concerns_no_job_is_told_to_all_that_want_alarms(office: Office) -> None:
    office.loop.alarm("", act.Alarm("unknown-machine", "i-1 carries our tag", "i-1"))
    office.settle()
    assert office.post.told == [(SECRET, "gpujob: unknown-machine", "i-1 carries our tag\ngpujob audit")]


def test_a_failing_target_is_tried_again_then_given_up_and_disturbs_nobody(office: Office) -> None:
    office.rent(spec={"notify": ["me"]})
    office.post.refuse = NotSent("it answered HTTP 500")
    office.loop.alarm(office.job().id, act.Alarm("stalled", "no step"))
    office.settle()
    (notice,) = office.store.newest_notices(office.job().id)
    assert (notice.tries, notice.error, notice.over) == (1, "it answered HTTP 500", False)
    words = notice_words(notice, office.clock.utc())
    assert words.startswith("me: NOT told 'train: stalled': it answered HTTP 500 (try 1, again in ")
    for pause in RETRY_S:
        office.settle(after=pause + 1)
    (notice,) = office.store.newest_notices(office.job().id)
    assert (notice.tries, notice.over, notice.sent_at) == (len(RETRY_S) + 1, True, None)
    assert notice_words(notice, office.clock.utc()).endswith("(try 6, given up)")
    assert office.job().outcome is None
    assert office.loop.faults == 0
    office.post.refuse = None
    office.done()
    assert titles(office) == ["train is done"]


def test_what_waits_for_a_dead_target_hides_nothing_of_another(office: Office) -> None:
    job = office.rent(spec={"notify": ["me", "team"]}).job
    office.post.hang = threading.Event()
    many = [News(job, "team", f"outcome:{number}", "old", "") for number in range(60)]
    upto = office.store.journal(job, limit=1000)[-1].id
    office.store.put_news(upto, [*many, News(job, "me", "outcome:60", "new", "")], office.clock.utc())
    office.turn(after=2.0)
    office.post.hang.set()
    office.settle()
    assert "new" in titles(office)


def test_a_plugin_that_breaks_in_its_own_way_is_a_failure_like_any_other(office: Office) -> None:
    office.rent(spec={"notify": ["me"]})
    office.post.refuse = RuntimeError(SECRET)
    office.done()
    (notice,) = office.store.newest_notices()
    assert notice.error == "RuntimeError"


def test_a_restart_between_news_and_send_tells_it_and_one_after_it_does_not_tell_it_again(office: Office) -> None:
    office.rent(spec={"notify": ["me"]})
    office.post.hang = threading.Event()
    office.write(office.job().id, act.SetOutcome(Outcome.DONE, Reason.DONE))
    office.turn(after=2.0)
    office.loop.notifier = Notifier(office.loop, office.post)
    hung, office.post.hang = office.post.hang, None
    office.settle()
    hung.set()
    told = titles(office)
    assert "train is done" in told
    office.loop.notifier = Notifier(office.loop, office.post)
    office.settle()
    office.settle()
    (notice,) = office.store.newest_notices()
    assert notice.sent_at is not None
    assert len(titles(office)) <= 2, "the hung one may come as well: at least once"


def test_a_send_that_never_comes_back_counts_as_failed_and_its_late_answer_as_nothing(office: Office) -> None:
    office.rent(spec={"notify": ["me"]})
    office.post.hang = threading.Event()
    office.write(office.job().id, act.SetOutcome(Outcome.DONE, Reason.DONE))
    office.turn(after=2.0)
    office.turn(after=STUCK_S + 1)
    (notice,) = office.store.newest_notices()
    assert "no answer" in notice.error
    office.post.hang.set()


def test_what_was_written_before_there_was_an_outbox_is_no_news(office: Office) -> None:
    office.rent(spec={"notify": ["me"]})
    office.loop.alarm(office.job().id, act.Alarm("stalled", "old"))
    with office.store.transaction():
        office.store._db.execute("DELETE FROM meta WHERE key = 'notices_upto'")
    office.loop.notifier = Notifier(office.loop, office.post)
    office.settle()
    assert office.post.told == []
    office.done()
    assert titles(office) == ["train is done"]


def test_a_target_that_left_the_config_ends_as_a_failure(office: Office) -> None:
    office.rent(spec={"notify": ["gone"]})
    office.done()
    (notice,) = office.store.newest_notices()
    assert notice.error == "the config has no such target any more"


def test_no_address_is_in_the_books_or_in_anything_printed(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    office.rent(spec={"notify": ["me"]})
    office.post.refuse = NotSent("it did not take the message")
    office.done()
    books = b"".join(path.read_bytes() for path in office.home.state.glob("gpujob.db*"))
    assert b"t0psecret" not in books
    assert b"train is done" in books
    assert "t0psecret" not in repr(load_config(office.home))
    findings = [finding for finding in doctor.examine(office.home) if finding.check == "notify"]
    assert [(f.level, f.text) for f in findings] == [
        ("warn", "me: it did not take the message"), ("ok", "team: untried"),
    ]  # fmt: skip
    out = capsys.readouterr()
    assert "t0psecret" not in out.out + out.err + str(findings)


def test_doctor_sends_a_test_when_it_is_asked_to(
    office: Office, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUJOB_HOME", str(office.home.state))
    monkeypatch.setattr(Home, "from_env", classmethod(lambda cls: office.home))
    post = Post()
    monkeypatch.setattr("orchestrator.targets.send", post)
    main.main(["doctor", "--notify", "team"])
    assert post.told == [("json://team", "gpujob: a test", "This is what an alarm or the end of a job looks like.")]
    assert "team took the test" in capsys.readouterr().out
    post.refuse = NotSent("it answered HTTP 403")
    assert main.main(["doctor", "--notify", "team", "--notify", "tem"]) == 2
    out = capsys.readouterr().out
    assert "team: it answered HTTP 403" in out
    assert "there is no target 'tem'" in out
    assert "next: the config has me, team" in out


# --- config, spec and address ----------------------------------------------------------------------------------------


def config_of(tmp_path: Path, text: str) -> Any:
    home = Home(state=tmp_path / "s", config=tmp_path / "c").make()
    home.config_file.write_text(f"notify:\n  {text}\n")
    return load_config(home, {}).notify


def test_targets_of_the_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    (target,) = config_of(tmp_path, "me: {url_env: HOOK, events: [outcome, alarm]}").values()
    assert target == Target(url_env="HOOK", topics=frozenset({"outcome", "alarm"}))
    assert target.address({"HOOK": "json://x "}) == "json://x"
    with pytest.raises(NotSent, match="the variable HOOK is not set where the controller runs"):
        target.address({})
    assert config_of(tmp_path, "me: {url: 'json://x', events: outcome}")["me"].topics == {"outcome"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("me: {}", "needs either url or url_env"),
        ("me: {url: a, url_env: B}", "needs either url or url_env"),
        ("me: {url: a, event: outcome}", "did you mean events?"),
        ("me: {url: a, events: [outcme]}", "'outcme' is no event (one of outcome, alarm, reclaim, waiting, release)"),
        ("me: {url: [a]}", "must be one word"),
    ],
)
def test_targets_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, words: str) -> None:
    monkeypatch.delenv("GPUJOB_CONFIG", raising=False)
    with pytest.raises(SpecErrors) as caught:
        config_of(tmp_path, text)
    assert words in str(caught.value)


def test_an_unknown_target_is_refused_with_what_is_configured(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ngpu: none\nrun: echo\nnotify: [me, yuo]\n")
    loaded = specs.load_all([str(path)], {}, {})
    with pytest.raises(SpecErrors) as caught:
        specs.refuse_unknown_targets(loaded, {"you": Target(), "me": Target()})
    (problem,) = caught.value.problems
    assert (problem.line, problem.key, problem.reason) == (4, "notify[1]", "there is no target 'yuo'")
    assert problem.hint == "the config has me, you"
    with pytest.raises(SpecErrors, match="the config has none"):
        specs.refuse_unknown_targets(loaded, {})
    specs.refuse_unknown_targets(loaded, {"me": Target(), "yuo": Target()})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise's own
@pytest.mark.parametrize("address", ["nonsense", "", "t0psecret://x", "mailto://"])
def test_an_address_that_is_none_is_said_without_it(address: str) -> None:
    pytest.importorskip("apprise")
    with pytest.raises(NotSent) as caught:
        send(Target(url=address), "t", "b")
    assert "the address" in str(caught.value)
    assert "Warning" not in str(caught.value)
    assert "t0psecret" not in str(caught.value)


def test_without_apprise_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "apprise", None)
    with pytest.raises(NotSent, match=r"install gpujob with its extra `notify`"):
        send(Target(url="json://x"), "t", "b")


def test_the_outbox_and_its_cursor_are_written_together(tmp_path: Path) -> None:
    with Store.open_writer(Home(tmp_path / "s", tmp_path / "c").make(), 1, deployment="d", network=lambda _: None) as s:
        assert s.news_since() == ()
        s.add_journal(1.0, "alarm:x", "one")
        (entry,) = s.news_since()
        assert s.put_news(entry.id, [], 2.0) == 0
        assert s.news_since() == ()


def test_a_spec_with_targets_is_refused_where_nothing_can_be_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.yaml"
    path.write_text("name: a\ngpu: none\nrun: echo\nnotify: [me]\n")
    loaded = specs.load_all([str(path)], {}, {})
    specs.refuse_unknown_targets(loaded, {"me": Target()})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(CliError, match="apprise"):
        specs.refuse_unknown_targets(loaded, {"me": Target()})
    path.write_text("name: a\ngpu: none\nrun: echo\n")
    specs.refuse_unknown_targets(specs.load_all([str(path)], {}, {}), {"me": Target()})

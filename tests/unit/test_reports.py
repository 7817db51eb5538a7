"""Reports of legs from their stored logs: whole lines only, of runs of this very machine only."""

from __future__ import annotations

from pathlib import Path

import pytest
from loop_desk import Desk

from orchestrator import actions as act
from orchestrator import reports
from orchestrator.model import Exit, Rental

SWEEP = {
    "budget": "60 USD",
    "parameters": {"lr": ["1e-4"]},
    "metric": {"name": "val_loss", "goal": "minimize", "regex": "val_loss=([0-9.eE+-]+)"},
}


class Study(Desk):
    """A desk with one running leg."""

    def begin(self) -> Rental:
        rental = self.rent(spec={"sweep": SWEEP}, tasks=[{"id": "leg1", "params": {"lr": "1e-4"}}])
        job = self.job().id
        self.write(job, act.CommitAssignment("leg1", 1, rental.id, (), "", "", None))
        self.store.ordered(job, "leg1", 1, self.clock.utc())
        return rental

    @property
    def log(self) -> Path:
        path = self.home.log(self.job().id, "leg1", 1, "run")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def read(self, rental: Rental, complete: bool = False) -> list[float]:
        reports.read(self.loop, self.job().id, rental.id, "leg1.1", complete=complete)
        return [row.value for row in self.store.reports(self.job().id)]


def test_half_a_line_is_no_report_even_when_the_run_is_over(tmp_path: Path) -> None:
    with Study(tmp_path) as study:
        rental = study.begin()
        study.log.write_text("val_loss=0.5\nval_loss=0.1")
        study.write(study.job().id, act.StoreExit("leg1", 1, Exit("run", 0, study.clock.utc(), None)))
        assert study.read(rental) == [0.5]  # its exit is known before the rest of its log is here
        with study.log.open("a") as log:
            log.write("234")
        assert study.read(rental) == [0.5]
        assert study.read(rental, complete=True) == [0.5, 0.1234]


def test_a_line_over_the_border_of_two_readings_is_read_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "CHUNK", 32)
    with Study(tmp_path) as study:
        rental = study.begin()
        study.log.write_text("".join(f"val_loss=0.{n}1234\n" for n in range(10, 20)))
        assert study.read(rental) == [float(f"0.{n}1234") for n in range(10, 20)]


def test_a_line_without_end_holds_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports, "CHUNK", 32)
    with Study(tmp_path) as study:
        rental = study.begin()
        study.log.write_text("." * 64 + "\nval_loss=0.25\n")
        assert study.read(rental) == [0.25]


@pytest.mark.parametrize("key", ["leg1.2", "leg1", "leg1.x", "leg1.²", f"leg1.{'9' * 30}", ".", ""])
def test_a_run_that_a_machine_does_not_have_is_none(tmp_path: Path, key: str) -> None:
    with Study(tmp_path) as study:
        rental = study.begin()
        assert reports.run_of(study.loop, study.job().id, rental.id, "leg1.1") is not None
        assert reports.run_of(study.loop, study.job().id, "gj-another", "leg1.1") is None
        assert reports.run_of(study.loop, study.job().id, rental.id, key) is None

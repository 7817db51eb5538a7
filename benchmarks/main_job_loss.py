"""From the loss of a machine to the next create call: p95 of 20 under 7 s on a reset, under 17 s in a black hole.

    ./dev bench main_job_loss [SAMPLES] [JOBS]

Reset: the first process of the machine is killed, so the kernel closes its connections. Black hole: the proxy in front
of its sshd stops carrying anything, and the machine is reclaimed behind it; the clock starts at the stall. In both the
provider shows the machine dead by a point-get, and the create is timed where the provider is called. Jobs lose their
machines one after the other, two seconds apart, while the others run; each run saves one checkpoint and resumes.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from _desk import Desk
from _measure import Figure, say, show
from _stalling import CREATED, NAME, PROXIED, Lines, install

from orchestrator.model import Rental
from providers.base import Instance
from providers.local_machine import lives

RESET_S, BLACK_HOLE_S = 7.0, 17.0
APART_S = 2.0
# One checkpoint a run, whose number is that of the run: a job that got no further would not be relaunched for ever
PROGRAM = """
n=0
if [ -n "$GPUJOB_RESUME_FROM" ]; then n=$(cat "$GPUJOB_RESUME_FROM"); fi
n=$((n + 1)); echo "$n" >"$GPUJOB_CKPT/tmp-$n"; mv "$GPUJOB_CKPT/tmp-$n" "$GPUJOB_CKPT/step_$n"
echo "step=$n"
exec sleep 3600
"""


class Losses:
    """Jobs on machines that can be lost in two ways."""

    def __init__(self, desk: Desk, jobs: int) -> None:
        self.desk = desk
        desk.home.make()
        self.lines = Lines(desk.home.state)
        self.names = [f"job-{number}" for number in range(jobs)]
        for name in self.names:
            keys = {"checkpoint": {"pattern": "step_{n}", "every": "1s"}, "grace": {"time": "5s"}, "spot": True}
            spec = desk.spec(name, run=PROGRAM, providers=[NAME], **keys)
            desk.cli("apply", str(spec), "-y")

    def _job(self, name: str) -> str:
        with self.desk.books() as books:
            return str(books.find(name).job)

    def live(self, name: str) -> Rental | None:
        """The rental whose run has its checkpoint durable, with everything at rest."""
        job = self._job(name)
        with self.desk.books() as books:
            rental = books.rentals(job)[-1:]
            run = books.assignments(job)[-1:]
            durable = {c.n for c in books.checkpoints(job)}
        if not rental or not run or run[0].rental != rental[0].id or run[0].n not in durable:
            return None
        return rental[0] if rental[0].phase == "live" else None

    def until_live(self) -> None:
        for name in self.names:
            self.desk.until(lambda name=name: self.live(name), f"{name} runs and has saved", every=0.2)

    def machine(self, rental: Rental) -> Instance:
        found = self.desk.machine(rental.id)
        assert found is not None
        return found

    def created_after(self, job: str, at: float) -> float | None:
        """When create was next called for a job."""
        for line in (self.desk.home.state / CREATED).read_text().splitlines():
            when, of = line.split()
            if of == job and float(when) > at:
                return float(when)
        return None

    def lose_all(self, how: str) -> list[float]:
        """Lose the machine of each job; seconds until each create."""
        self.until_live()
        lost = {}
        for name in self.names:
            rental = self.live(name)
            assert rental is not None
            machine = self.machine(rental)
            lost[self._job(name)] = self._reset(machine) if how == "reset" else self._swallow(machine)
            time.sleep(APART_S)
        found = []
        for job, at in lost.items():
            made = self.desk.until(lambda job=job, at=at: self.created_after(job, at), f"a successor of {job}")
            found.append(made - at)
        say(f"{how}: " + " ".join(f"{seconds:.2f}" for seconds in found))
        return found

    def _reset(self, machine: Instance) -> float:
        (first, *_) = lives.processes(self.desk.provider.world, machine.ref.id)
        at = time.monotonic()
        first.kill()
        return at

    def _swallow(self, machine: Instance) -> float:
        assert machine.endpoint is not None
        line = self.lines.to(machine.endpoint.port)
        at = time.monotonic()
        line.stall()
        self.desk.provider.reclaim(machine.ref)
        return at


def measure(samples: int, jobs: int) -> list[Figure]:
    resets: list[float] = []
    holes: list[float] = []
    with tempfile.TemporaryDirectory(prefix="gj-plugin-") as place, Desk(*install(Path(place, "dist"))) as desk:
        losses = Losses(desk, jobs)
        try:
            while len(resets) < samples or len(holes) < samples:
                # Machines that are made from here on decide how the next ones can be lost
                (desk.home.state / PROXIED).touch()
                resets += losses.lose_all("reset")
                (desk.home.state / PROXIED).unlink()
                holes += losses.lose_all("black hole")
            desk.cli("cancel", "--all", "--now")
        finally:
            losses.lines.close()
    return [
        Figure("loss to the next create call, reset", tuple(resets), "s", RESET_S, "p95"),
        Figure("loss to the next create call, black hole", tuple(holes), "s", BLACK_HOLE_S, "p95"),
    ]


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]]
    samples, jobs = [*numbers, *(20, 5)[len(numbers) :]]
    raise SystemExit(show(measure(samples, jobs)))

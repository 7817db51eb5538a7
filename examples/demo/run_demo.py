"""`./dev demo`: a training job that loses its machine half-way, from its spec to the release, and a check of it all.

The commands are the ones that a user types. This script adds three things: a state folder of its own, so that nothing
of yours is touched; the reclaim, which it causes once the job has a durable checkpoint; and, at the end, its own look
at whether everything is true, first of all that the provider lists no machine that lives.

Exit code 0 only if all of it is true. Ctrl-C cancels the job, waits for the release and stops the controller.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
NAME = "digits"
NOTICE_S = 10  # as long as a provider with a short notice gives
RECLAIM_FROM_STEP = 500  # of 2400: there is something to lose by then
LOOK_S = 1.0
CLEAN_UP_WITHIN_S = 60
PNG = b"\x89PNG\r\n\x1a\n"
# What pip needs on a machine where the user's own settings are not: the demo's machines have a home of their own.
PIP_SETTINGS = ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_CERT", "HTTPS_PROXY", "https_proxy")


class Demo:
    """One run of the demo. `home` holds the controller's state and the machines."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.reclaim_file = home / "reclaim"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("GPUJOB_") or k == "GPUJOB_LOCAL_ISOLATION"}
        self.env = kept | {
            "GPUJOB_HOME": str(home),
            "GPUJOB_LOCAL_RECLAIM": f"attempt=1,at-file={self.reclaim_file},notice={NOTICE_S}s",
            "PYTHONPATH": os.pathsep.join(p for p in (str(ROOT), os.environ.get("PYTHONPATH", "")) if p),
        }
        self.over = threading.Event()
        self.started = time.time()

    def command(self, *words: str) -> list[str]:
        script = Path(sys.executable).with_name("gpujob")
        if script.exists():
            return [str(script), *words]
        return [sys.executable, "-m", "orchestrator.cli.main", *words]

    def run(self, *words: str) -> int:
        """A command as a user types it, with its output."""
        print(f"\n$ gpujob {' '.join(words)}", flush=True)
        return subprocess.run(self.command(*words), env=self.env, cwd=HERE, check=False).returncode

    def ask(self, *words: str) -> Any:
        """The JSON answer of a command; None while it has none."""
        done = subprocess.run(
            self.command(*words, "-o", "json"), env=self.env, cwd=HERE, capture_output=True, text=True, check=False
        )
        try:
            return json.loads(done.stdout)
        except ValueError:
            return None

    def reclaim_when_it_hurts(self) -> None:
        """Wait for a durable checkpoint and some steps, then have the provider take the machine."""
        while not self.over.wait(LOOK_S):
            job = self.ask("describe", NAME)
            if job and job["checkpoints"] and (job["step"] or 0) >= RECLAIM_FROM_STEP:
                start = "\r\x1b[2K" if sys.stderr.isatty() else "\n"  # over the line that --follow keeps redrawing
                said = f"{start}# The provider wants its spot machine back: {NOTICE_S} s notice."
                print(said, file=sys.stderr, flush=True)
                self.reclaim_file.touch()
                return

    def apply(self) -> int:
        """Plan and apply, following until the release."""
        pip = [word for name in PIP_SETTINGS if os.environ.get(name) for word in ("--env", name)]
        self.run("plan", "demo.yaml")
        watcher = threading.Thread(target=self.reclaim_when_it_hurts)
        watcher.start()
        try:
            return self.run("apply", "-y", "--follow", "demo.yaml", *pip)
        finally:
            self.over.set()
            watcher.join()

    def clean_up(self) -> None:
        """After Ctrl-C or a failure: nothing may go on."""
        for words in (("cancel", "--all", "--now"), ("wait", NAME, "--for", "released", "--timeout", "30s")):
            subprocess.run(
                self.command(*words), env=self.env, cwd=HERE, check=False, timeout=CLEAN_UP_WITHIN_S,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def stop_controller(self) -> bool:
        done = subprocess.run(self.command("controller", "stop"), env=self.env, check=False, stdout=subprocess.DEVNULL)
        return done.returncode == 0

    def living_machines(self) -> list[str]:
        """Ids of the machines that the provider itself lists as alive, whoever rented them."""
        sys.path.insert(0, str(ROOT))
        from providers.base import ProviderConfig
        from providers.local import LocalProvider

        deployment = json.loads((self.home / "config" / "deployment").read_text(encoding="utf-8"))["deployment"]
        local = LocalProvider(ProviderConfig(deployment, self.home, (), {}))
        listed = [machine for region in local.regions() for machine in local.list(region).instances]
        return [machine.ref.id for machine in listed if machine.status not in local.caps.dead_statuses]

    def findings(self, job: dict[str, Any], code: int) -> Iterator[tuple[bool, str, str]]:
        """(true or not, name, what was found): everything the demo promises."""
        rentals, runs, results = job["rentals"], job["runs"], Path(job["results"] or "")
        interrupted = [rental for rental in rentals if rental["reason"] == "interrupted"]
        yield (
            code == 0 and job["state"] == "DONE" and len(runs) == 2 and len(interrupted) == 1,
            "attempts",
            f"{len(rentals)}, {len(interrupted)} of them reclaimed; the job is {job['state']}",
        )
        resumed, total = runs[-1]["resume_step"] or 0, job["total"] or 0
        yield 0 < resumed < total, "resumed", f"from step {resumed:g} of {total:g}"
        yield job["steps_lost"] is not None, "steps lost", f"{job['steps_lost']:g}"
        phases = job["phases_s"]
        yield "run" in phases, "seconds", " · ".join(f"{name} {seconds:g}" for name, seconds in phases.items())
        spent = job["spent"]
        play = bool(spent.get("play")) and float(spent["amount"]) > 0
        yield play, "money", f"{float(spent['amount']):.4f} {spent['currency']} (play)"
        yield results.is_dir(), "results", str(results)
        curve, metrics = results / "learning_curve.png", results / "metrics.json"
        drawn = curve.is_file() and curve.read_bytes().startswith(PNG) and curve.stat().st_mtime >= self.started - 1
        yield drawn, "curve", str(curve)
        found = json.loads(metrics.read_text(encoding="utf-8")) if metrics.is_file() else {}
        accuracy = float(found.get("accuracy", 0))
        yield (
            accuracy > 0.9 and found.get("resumed_at") == [resumed],
            "model",
            f"{accuracy:.1%} of the held-out digits right; its own record says resumed at {found.get('resumed_at')}",
        )
        living = self.living_machines()
        words = "nothing is billing" if not living else f"still there: {', '.join(living)}"
        yield not living and not job["billing"], "now", f"{words} (asked of the provider: {len(living)} machines live)"

    def summary(self, code: int) -> bool:
        """Print what happened and whether it is true."""
        job = self.ask("describe", NAME)
        print(f"\nTHE DEMO  (checked by this script, {time.time() - self.started:.0f} s in all)")
        if job is None:
            print("  FAILED  there is no job to describe")
            return False
        good = True
        for true, name, words in self.findings(job, code):
            good = good and true
            print(f"  {'ok' if true else 'FAILED':<6}  {name:<10}  {words}")
        return good


def forget_last_results() -> None:
    """The demo's own results of an earlier run would hide whether this one brought any."""
    shutil.rmtree(HERE / "gpujob-results" / NAME, ignore_errors=True)


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev demo", description=__doc__.split("\n\n")[0])
    parser.add_argument("--home", type=Path, help="state folder to use and keep (default: a temporary one, removed)")
    args = parser.parse_args()
    home = args.home.absolute() if args.home else Path(tempfile.mkdtemp(prefix="gpujob-demo-"))
    if args.home and (home / "gpujob.db").exists():
        print(f"{home} holds a state already; name an empty folder", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    demo = Demo(home)
    forget_last_results()
    good = False
    code = 130
    try:
        code = demo.apply()
        good = demo.summary(code)
    except KeyboardInterrupt:
        print("\ninterrupted: cancelling the job and releasing its machine", file=sys.stderr)
    finally:
        # A second Ctrl-C must not leave a machine behind
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if not good:
            demo.clean_up()
        stopped = demo.stop_controller()
    if good and stopped:
        if not args.home:
            shutil.rmtree(home, ignore_errors=True)
        return 0
    print(f"the controller's log and the job's are kept in {home}", file=sys.stderr)
    return code or 1


if __name__ == "__main__":
    sys.exit(main())

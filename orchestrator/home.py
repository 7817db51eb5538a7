"""Where gpujob keeps things on this computer; every path of the project is made here.

    config folder   $GPUJOB_CONFIG's folder, else $GPUJOB_HOME/config, else ~/.config/gpujob
        config.yaml        defaults, providers, stores, limits
        client             this computer's name at a controller on another host
        deployment         deployment id and highest epoch: outlives a lost database
    state folder    $GPUJOB_HOME, else $XDG_DATA_HOME/gpujob, else ~/.local/share/gpujob
        gpujob.db          the books (SQLite, WAL)
        controller.lock    held by the controller for its life; .sock pokes it; .log is its log
        blobs/ab/abcd...   content store: files of all snapshots, by SHA-256
        snapshots/HASH     one snapshot's manifest (JSON)
        manifests/HASH     one data source's list of files (JSON lines)
        git/HASH.git       clones of `workdir: {git, ref}`, fetched again at each apply
        secrets/JOB/NAME   0600 files, removed at the job's end
        jobs/JOB/          logs, mirror and results staging of one job
        rentals/ID/        key, pinned host key and ssh_config of one machine
        clients/ID/        what another computer sent whose GPUJOB_CONTROLLER is this host
        local/             the machines of the `local` provider (not ours to read)

No module but this one joins a path below these folders by hand.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Home:
    """The two folders, and the names inside them."""

    state: Path
    config: Path

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Home:
        """Folders as the environment says; nothing is created."""
        env = os.environ if env is None else env
        user = Path(env.get("HOME") or os.path.expanduser("~"))
        home = env.get("GPUJOB_HOME")
        if home:
            state = Path(home)
        else:
            state = Path(env.get("XDG_DATA_HOME") or user / ".local" / "share") / "gpujob"
        if env.get("GPUJOB_CONFIG"):
            config = Path(env["GPUJOB_CONFIG"]).absolute().parent
        elif home:
            config = state / "config"
        else:
            config = Path(env.get("XDG_CONFIG_HOME") or user / ".config") / "gpujob"
        return cls(state=state.absolute(), config=config.absolute())

    def make(self) -> Home:
        """Create both folders, private to the user."""
        for folder in (self.state, self.config):
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return self

    @property
    def config_file(self) -> Path:
        return Path(os.environ.get("GPUJOB_CONFIG") or self.config / "config.yaml")

    @property
    def deployment_file(self) -> Path:
        return self.config / "deployment"

    @property
    def database(self) -> Path:
        return self.state / "gpujob.db"

    @property
    def lock(self) -> Path:
        return self.state / "controller.lock"

    @property
    def socket(self) -> Path:
        return self.state / "controller.sock"

    @property
    def controller_log(self) -> Path:
        return self.state / "controller.log"

    @property
    def blobs(self) -> Path:
        return self.state / "blobs"

    @property
    def snapshots(self) -> Path:
        return self.state / "snapshots"

    @property
    def manifests(self) -> Path:
        return self.state / "manifests"

    @property
    def repositories(self) -> Path:
        return self.state / "git"

    @property
    def client_file(self) -> Path:
        return self.config / "client"

    def client(self, name: str) -> Path:
        """The folder of one client at its controller's host."""
        return self.state / "clients" / name

    def secrets(self, job: str) -> Path:
        return self.state / "secrets" / job

    def secret_store(self) -> Path:
        """Secrets set by `gpujob secret set`, where no keyring is used."""
        return self.config / "secrets"

    def job(self, job: str) -> Path:
        return self.state / "jobs" / job

    def log(self, job: str, task: str, n: int, stage: str) -> Path:
        """The stored log of one stage of one run, byte for byte (secrets masked)."""
        return self.job(job) / "logs" / f"{task}.{n}" / f"{stage}.log"

    def events(self, job: str, rental: str) -> Path:
        """The agent's events of one rental, as received."""
        return self.job(job) / "events" / f"{rental}.jsonl"

    def series(self, job: str, rental: str) -> Path:
        """What the samples of one rental's machine were, by `series`."""
        return self.job(job) / "series" / f"{rental}.bin"

    def mirror(self, job: str, task: str) -> Path:
        """Verified checkpoints of one task when the controller is the mirror."""
        return self.job(job) / "mirror" / task

    def results(self, job: str, task: str, n: int) -> Path:
        """Results of one run as they arrive, before they are published."""
        return self.job(job) / "results" / f"{task}.{n}"

    def rental(self, rental: str) -> Path:
        return self.state / "rentals" / rental

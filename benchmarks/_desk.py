"""A user's computer in a temporary folder: a state folder, the command line, a controller, and nothing left behind."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from _measure import ROOT, Used, run

from orchestrator.cli import client
from orchestrator.home import Home
from orchestrator.store import Store
from providers.base import Instance, ProviderConfig, Ref
from providers.local import LocalProvider
from providers.local_machine import lives

T = TypeVar("T")

WAIT_S = 120.0
LOOK_S = 0.02
NOT_KEPT = ("GPUJOB_", "CI", "GITHUB_", "GITLAB_", "JENKINS_", "XDG_", "SSH_", "PYTHON")


class Desk:
    """`with Desk() as desk:`; this process gets its environment too, so that the project's own functions work on it."""

    def __init__(self, *path: Path, bytecode: bool = True) -> None:
        """`path` comes before the checkout on PYTHONPATH: plugins."""
        self.base = Path(tempfile.mkdtemp(prefix="gj-"))
        (self.base / "user").mkdir()
        self.project = self.base / "project"
        self.project.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(NOT_KEPT)}
        self.env = {
            **kept,
            "HOME": str(self.base / "user"),
            "GPUJOB_HOME": str(self.base / "home"),
            "GPUJOB_CONTROLLER": "here",
            "PYTHONPATH": os.pathsep.join(map(str, (*path, ROOT))),
            "NO_COLOR": "1",
        }
        if not bytecode:
            self.env["PYTHONDONTWRITEBYTECODE"] = "1"
        self.home = Home.from_env(self.env)
        self._before = dict(os.environ)

    def __enter__(self) -> Desk:
        os.environ.clear()
        os.environ.update(self.env)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.kill_controller()
            if self.home.deployment_file.exists():
                for machine in self.provider.world.ids():
                    self.provider.destroy(Ref("local", "local", "here", machine))
        finally:
            os.environ.clear()
            os.environ.update(self._before)
            shutil.rmtree(self.base, ignore_errors=True)

    def cli(self, *args: str) -> Used:
        """`gpujob ARGS`, which must exit 0."""
        return run([sys.executable, "-m", "orchestrator.cli.main", *args], env=self.env, cwd=self.project)

    def spec(self, name: str, **keys: Any) -> Path:
        """Write a spec; JSON is YAML."""
        path = self.project / f"{name}.yaml"
        document = {"name": name, "gpu": "none", "providers": ["local"], "ttl": "2h", "artifacts": "none", **keys}
        path.write_text(json.dumps(document))
        return path

    @contextlib.contextmanager
    def books(self) -> Any:
        with Store.open_reader(self.home) as store:
            yield store

    def until(self, look: Callable[[], T], what: str, timeout: float = WAIT_S, every: float = LOOK_S) -> T:
        """The first truthy answer of `look`; raises with the end of the controller's log."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(every)
        log = self.home.controller_log.read_text()[-4000:] if self.home.controller_log.exists() else ""
        raise TimeoutError(f"never happened: {what}\n{log}")

    # --- the controller -----------------------------------------------------------------------------------------------

    def controller_pid(self) -> int:
        """The live controller's pid, 0 when there is none."""
        if not client.lock_held(self.home.lock):
            return 0
        return int(self.home.lock.read_text() or "0")

    def kill_controller(self) -> None:
        pid = self.controller_pid()
        if pid:
            os.kill(pid, signal.SIGKILL)
            self.until(lambda: not client.lock_held(self.home.lock), "the controller ends")

    # --- the account --------------------------------------------------------------------------------------------------

    @property
    def provider(self) -> LocalProvider:
        """The machines of this desk, asked directly."""
        deployment = json.loads(self.home.deployment_file.read_text())["deployment"]
        return LocalProvider(ProviderConfig(deployment, self.home.state, ()))

    def machine(self, rental: str) -> Instance | None:
        """The live machine of a rental."""
        for instance in self.provider.list("here").instances:
            if instance.tag is not None and instance.tag.rental == rental and instance.status not in lives.DEAD:
                return instance
        return None

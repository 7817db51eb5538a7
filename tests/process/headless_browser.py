"""A headless Chromium that a test talks to through two pipes: no port, no driver, standard library only.

Messages are JSON documents that end with a zero byte (the browser's --remote-debugging-pipe). Nothing is asked of the
network: host names resolve to nothing.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
ANSWER_S = 60.0  # on a computer that does much else, its start takes ten


def find_browser() -> str | None:
    """Its path; None where there is none."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One page of one browser. JavaScript errors and requests of the page are collected."""

    def __init__(self, program: str, profile: Path) -> None:
        ours_read, theirs_write = os.pipe()
        theirs_read, ours_write = os.pipe()
        # The browser reads from descriptor 3 and writes to 4
        command = f'exec "$0" "$@" 3<&{theirs_read} 4>&{theirs_write}'
        self.process = subprocess.Popen(
            ["bash", "-c", command, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             "--disable-background-networking", "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND",
             f"--user-data-dir={profile}", "--remote-debugging-pipe", "--hide-scrollbars", "about:blank"],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            pass_fds=(theirs_read, theirs_write),
        )  # fmt: skip
        os.close(theirs_read)
        os.close(theirs_write)
        self._in, self._out, self._rest, self._number = ours_read, ours_write, b"", 0
        self.errors: list[str] = []
        self.requests: list[str] = []
        self._session = ""
        self._loaded = False
        targets = self.ask("Target.getTargets")["targetInfos"]
        page = next(target["targetId"] for target in targets if target["type"] == "page")
        self._session = self.ask("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.ask(f"{domain}.enable")

    def close(self) -> None:
        """End the browser."""
        os.close(self._out)
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self._in)

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """One command and its answer; what else comes in between is noted."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result

    def _read(self) -> dict[str, Any]:
        end = time.monotonic() + ANSWER_S
        while b"\0" not in self._rest:
            if not select.select([self._in], [], [], max(0.0, end - time.monotonic()))[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._in, 1 << 20)
            if not data:
                raise RuntimeError("the browser ended")
            self._rest += data
        text, _, self._rest = self._rest.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, params: dict[str, Any]) -> None:
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(params["entry"]["text"])
        elif event == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event == "Page.loadEventFired":
            self._loaded = True

    def open(self, file: Path, width: int = 1200, height: int = 900, dark: bool = False) -> None:
        """Load a page of this computer in a window of this size, without what an earlier one left."""
        self.errors.clear()
        self.requests.clear()
        phone = width < 600
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        self.ask("Page.navigate", url=file.as_uri())
        while not self._loaded:
            self._read()

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, as JSON."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"].get("exception", {}).get("description", "no value"))
        return answer["result"].get("value")

    def mouse(self, kind: str, x: float, y: float) -> None:
        """`mousePressed`, `mouseReleased` or `mouseMoved` at a place of the window."""
        button = "none" if kind == "mouseMoved" and not self._pressed else "left"
        self._pressed = kind == "mousePressed" or (kind == "mouseMoved" and self._pressed)
        self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button=button, clickCount=1)

    _pressed = False

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        size = self.ask("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], 4000), "scale": 1}
        shot = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        file.write_bytes(base64.b64decode(shot["data"]))


@contextlib.contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """A browser that is ended afterwards."""
    opened = Browser(program, profile)
    try:
        yield opened
    finally:
        opened.close()

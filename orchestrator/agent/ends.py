"""The machine's clock and the `deadline` file: when this machine ends."""

from __future__ import annotations

import time
from typing import NamedTuple

from orchestrator.agent.files import read_text, replace
from orchestrator.agent.layout import control


def uptime() -> float:
    """CLOCK_BOOTTIME as the boot hook sees it: both must compare the same clock."""
    with open("/proc/uptime", encoding="ascii") as file:
        return float(file.read().split()[0])


def boot_id() -> str:
    return read_text("/proc/sys/kernel/random/boot_id").strip()


class Deadline(NamedTuple):
    """The `deadline` file; see "Ends" in the contract."""

    end: float
    boot_id: str
    boot_now: float
    boot_end: float
    grace: float
    action: str
    confirmed: bool

    @classmethod
    def load(cls) -> Deadline | None:
        pairs = dict(line.split("=", 1) for line in read_text(control("deadline")).splitlines() if "=" in line)
        try:
            return cls(
                float(pairs["end"]),
                pairs["boot_id"],
                float(pairs.get("boot_now", 0)),
                float(pairs["boot_end"]),
                float(pairs["grace"]),
                pairs["action"],
                pairs.get("confirmed") == "1",
            )
        except (KeyError, ValueError):
            return None

    def save(self) -> None:
        lines = [
            "end=%.1f" % self.end,
            "boot_id=" + self.boot_id,
            "boot_now=%.1f" % self.boot_now,
            "boot_end=%.1f" % self.boot_end,
            "grace=%d" % self.grace,
            "action=" + self.action,
            "confirmed=%d" % self.confirmed,
        ]
        replace(control("deadline"), "".join(line + "\n" for line in lines).encode())

    def remaining(self) -> float:
        """Seconds to the end. In a container started again, uptime may run backwards within one boot id."""
        up = uptime()
        if self.boot_id == boot_id() and up >= self.boot_now:
            return self.boot_end - up
        return self.end - time.time()

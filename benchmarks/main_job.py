"""Every bar of the main job, one after the other, as one table: `./dev bench main_job [PART...]`, about 20 minutes.

PARTS: cli, controller, install, script, loss, scale; without one all of them. Each part is a benchmark of its own as
well (`./dev bench main_job_cli`), where its numbers of runs can be given. The exit code is 1 when a bar is missed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import main_job_cli
import main_job_controller
import main_job_install
import main_job_loss
import main_job_scale
import main_job_script
from _measure import Figure, say, show

PARTS: dict[str, Callable[[], list[Figure]]] = {
    "cli": lambda: main_job_cli.measure(20),
    "controller": lambda: main_job_controller.measure(10, 30.0),
    "install": lambda: main_job_install.measure(10),
    "script": lambda: main_job_script.measure(5, 20),
    "loss": lambda: main_job_loss.measure(20, 5),
    "scale": lambda: main_job_scale.measure(1000, 200, 30.0),
}


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        say(f"there is no part {unknown[0]!r}; there is {', '.join(PARTS)}")
        return 2
    figures: list[Figure] = []
    for name in names or PARTS:
        say(f"--- {name}")
        found = PARTS[name]()
        show(found)
        figures += found
    print("\nAll of it:")
    return show(figures)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Which entries of a checkpoint folder are checkpoints, and which of them are complete.

Complete is what has settled (or carries its marker), is whole by its format, and has all that its siblings have.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections import Counter
from typing import Any

from orchestrator.agent.ends import uptime
from orchestrator.agent.files import list_names, note, read_json, read_text
from orchestrator.agent.formats import DEEPSPEED, files_below, flaw_of, is_marked
from orchestrator.agent.names import (
    MARKER_FILE,
    ROLLING,
    TEMPORARY,
    lacks,
    marked,
    numbered,
    shape_of,
    shapes,
    step_of,
    step_pattern,
)
from orchestrator.agent.runs import Run

SCAN_S = 2.0  # checkpoints: two equal looks this far apart mean that it has settled
POINTER_MAX = 4096  # bytes of a `latest` that only names another entry


def fingerprint(path: str) -> tuple[int, int, int, int]:
    """(bytes, newest mtime_ns, number of entries, oldest mtime_ns of a file): equal twice means that nobody wrote in
    between."""
    info = os.lstat(path)
    size, newest, count, oldest = info.st_size, info.st_mtime_ns, 1, info.st_mtime_ns
    if stat.S_ISDIR(info.st_mode):
        size = 0
        for top, folders, names in os.walk(path):
            for name in folders + names:
                info = os.lstat(os.path.join(top, name))
                size += info.st_size if stat.S_ISREG(info.st_mode) else 0
                newest, count = max(newest, info.st_mtime_ns), count + 1
                oldest = min(oldest, info.st_mtime_ns) if stat.S_ISREG(info.st_mode) else oldest
    return size, newest, count, oldest


def written_by(pids: dict[int, int], folder: str) -> set[str]:
    """Paths below `folder` that one of the processes holds open for writing."""
    found = set()
    for pid in pids:
        try:
            fds = os.listdir("/proc/%d/fd" % pid)
        except OSError:
            continue
        for fd in fds:
            try:
                path = os.readlink("/proc/%d/fd/%s" % (pid, fd))
                if not path.startswith(folder + "/"):
                    continue
                flags = re.search(r"flags:\s+([0-7]+)", read_text("/proc/%d/fdinfo/%s" % (pid, fd)))
            except OSError:
                continue  # closed meanwhile
            if flags and int(flags.group(1), 8) & (os.O_WRONLY | os.O_RDWR):
                found.add(path)
    return found


def points_elsewhere(path: str, names: list[str]) -> str:
    """What a small text such as DeepSpeed's `latest` names; "" where the file is a checkpoint itself."""
    name = os.path.basename(path)
    if not ROLLING.match(name) or "." in name.replace(".txt", "") or not os.path.isfile(path):
        return ""
    if not 0 < os.path.getsize(path) <= POINTER_MAX:
        return ""
    words = read_text(path).strip().splitlines()[:1]
    target = os.path.basename(words[0].partition(":")[2].strip(' "') or words[0]) if words else ""
    if target in names and target != name:
        return target
    return target if target.isprintable() and not target.isdigit() and numbered(target) is not None else ""


class Entry:
    """One candidate as it was last seen."""

    def __init__(self, name: str, step: int, mark: tuple[int, int, int, int], since: float, began: float) -> None:
        self.name, self.step, self.mark, self.since = name, step, mark, since
        self.began = began  # UTC of its first byte or of its first sight, also under a temporary name
        self.complete = False
        self.flaw: str | None = None  # of its own structure; None: not looked yet
        self.why = ""  # why it is not complete, where that is known

    def shown(self) -> dict[str, Any]:
        newest = self.mark[1] / 1e9
        found = {
            "name": self.name,
            "step": self.step,
            "bytes": self.mark[0],
            "complete": self.complete,
            "mtime": newest,
        }
        found["save_s"] = round(max(0.0, newest - self.began), 1)  # how long it took to write, within a look
        if self.why and not self.complete:
            found["why"] = self.why
        return found


class CheckpointScan:
    """Looks at one run's checkpoint folder again and again and says which entries are complete."""

    def __init__(self, run: Run) -> None:
        assert run.order is not None
        wanted = run.order.get("checkpoint") or {}
        self.run = run
        self.folder = os.path.normpath(os.path.join(run.folders()["ckpt"], wanted.get("path") or ""))
        self.pattern = step_pattern(wanted.get("pattern") or "")
        self.refused = False
        self.seen: dict[str, Entry] = {}
        self.begun: dict[str, float] = {}  # name, temporary ones too -> UTC of its first sight
        self.models: dict[str, tuple[int, Counter[str]]] = {}  # shape of a name -> step and files of the last complete
        self.marking: set[str] = set()  # shapes of names whose entries carry a marker
        self.learn(os.path.join(run.folders().get("resume", ""), run.order.get("resume_from") or ""))

    def learn(self, path: str) -> None:
        """What the checkpoint that the run resumed from consists of: the first one of this run has a sibling too."""
        name = os.path.basename(path)
        if name and os.path.isdir(path):
            self.models[shape_of(name)] = (step_of(name, self.pattern) or 0, shapes(files_below(path)))
            if is_marked(path):
                self.marking.add(shape_of(name))

    def look(self, dead: bool = False) -> list[dict[str, Any]]:
        """All entries, oldest step first; `dead`: nobody can write any more, so what is whole is complete."""
        now = uptime()
        try:
            names = list_names(self.folder)
        except OSError as error:  # another user's folder: the run's end and the status must be told all the same
            if not self.refused:
                note("checkpoints are not looked for: %s" % error)
            self.refused, names = True, []
        before, self.begun = self.begun, {name: self.begun.get(name, time.time()) for name in names}
        markers = {marked(name, names) for name in names} - {""}
        entries = sorted(self.entries(names, now, before), key=lambda entry: (entry.step, entry.name))
        self.seen = {entry.name: entry for entry in entries}
        for name in markers.union(entry.name for entry in entries if is_marked(os.path.join(self.folder, entry.name))):
            self.marking.add(shape_of(name))
        latest = points_elsewhere(os.path.join(self.folder, "latest"), names)
        open_paths: set[str] | None = None
        for entry in entries:
            if entry.complete:
                continue
            path = os.path.join(self.folder, entry.name)
            said = entry.name in markers or is_marked(path)
            if not (dead or said or now - entry.since >= SCAN_S):
                continue
            if open_paths is None:
                open_paths = set() if dead else written_by(self.run.pids(), os.path.realpath(self.folder))
            inside = os.path.realpath(path)
            if not said and any(item == inside or item.startswith(inside + "/") for item in open_paths):
                entry.why = "it is open for writing"
                continue
            self.judge(entry, path, said, entries, latest)
        return [entry.shown() for entry in entries]

    def entries(self, names: list[str], now: float, before: dict[str, float]) -> list[Entry]:
        """The candidates among the names, with what is known of them."""
        found = []
        for name in names:
            path = os.path.join(self.folder, name)
            step = step_of(name, self.pattern)
            if step is None or os.path.islink(path) or (MARKER_FILE.match(name) and marked(name, names)):
                continue
            try:
                mark = fingerprint(path)
                if points_elsewhere(path, names):
                    continue
            except OSError:
                continue  # removed meanwhile, or being renamed
            entry = self.seen.get(name)
            if entry is None or entry.mark != mark:
                own = re.compile(r"(?<!\d)%s(?!\d)" % re.escape(name))
                first = [
                    at
                    for other, at in before.items()
                    if other == name or (TEMPORARY.match(other) and own.search(other))
                ]
                entry = Entry(name, step, mark, now, min([mark[3] / 1e9, *first]))
            found.append(entry)
        return found

    def judge(self, entry: Entry, path: str, said: bool, entries: list[Entry], latest: str) -> None:
        """Whether a settled or marked entry is complete: by its format, its marker, its siblings."""
        if entry.flaw is None:
            entry.flaw = flaw_of(path)
            if entry.flaw:
                note("checkpoint %s: %s" % (path, entry.flaw))
        shape = shape_of(entry.name)
        newer = any(other.step > entry.step and shape_of(other.name) == shape for other in entries)
        files = files_below(path) if os.path.isdir(path) else []
        entry.why = entry.flaw
        if not entry.why and not said and shape in self.marking:
            entry.why = "its marker is not there, which others have"
        if not entry.why and not newer and files:
            entry.why = self.siblings_say(entry, shapes(files)) or self.deepspeed_says(entry, files, latest)
        entry.complete = not entry.why
        if entry.complete and files:
            self.models[shape] = (entry.step, shapes(files))

    def siblings_say(self, entry: Entry, own: Counter[str]) -> str:
        """Only the newest can be one that was not finished: a layout that changed on purpose costs one and not all."""
        step, model = self.models.get(shape_of(entry.name), (entry.step, Counter()))
        missing = lacks(model, own) if step < entry.step else ""
        return "it lacks %s, which an earlier one has" % missing if missing else ""

    def deepspeed_says(self, entry: Entry, files: list[str], latest: str) -> str:
        """DeepSpeed writes `latest` beside its folders when every rank has saved."""
        if not any(DEEPSPEED.match(name) for name in files) or "latest" in files:
            return ""
        if not latest or (numbered(latest) or 0) < entry.step:
            return "latest, which DeepSpeed writes last, does not name it"
        return ""


def checkpoints_of(run: Run) -> list[dict[str, Any]]:
    """The supervisor's last look; of a dead run always the final one, made here if need be."""
    kept = read_json(run.path("checkpoints.json"))
    if run.order is not None and run.ended is not None and not (kept and kept["final"]):
        return CheckpointScan(run).look(dead=True)
    return kept["list"] if kept else []

"""Which entries of a checkpoint folder are checkpoints, and which of them are complete."""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any

from orchestrator.agent.ends import uptime
from orchestrator.agent.files import list_names, note, read_json, read_text, size_of
from orchestrator.agent.runs import Run

SCAN_S = 2.0  # checkpoints: two equal looks this far apart mean that it has settled


TEMPORARY = re.compile(r"(\..*|tmp-.*|.*\.(tmp|part|incomplete))\Z")
NUMBER = re.compile(r"\d+")
# What programs call the one checkpoint that they write again and again; other names without a number are no checkpoints
# unless the spec's pattern asks for them, or a config.json beside the weights would count as one.
ROLLING = re.compile(r"(ckpt|checkpoint|last|latest)(\.[A-Za-z0-9.]+)?\Z", re.IGNORECASE)
NO_STEP = -1  # the controller numbers these by arrival


ANY = r".*\Z"


def step_pattern(pattern: str) -> re.Pattern[str]:
    """`step_{n}.npz` -> a regex whose group 1 is the step; `*` and `?` as in a shell. Empty: any name."""
    parts = {"{n}": r"(\d+)", "*": ".*", "?": "."}
    pieces = re.split(r"(\{n\}|\*|\?)", pattern or "*")
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces) + r"\Z")


def step_of(name: str, pattern: re.Pattern[str]) -> int | None:
    """The step in the name, or None where the name is not a checkpoint's."""
    match = pattern.match(name)
    if not match or TEMPORARY.match(name):
        return None
    if pattern.groups:
        return int(match.group(1))
    numbers = NUMBER.findall(name)
    if numbers:
        return int(numbers[-1])
    return NO_STEP if pattern.pattern != ANY or ROLLING.match(name) else None


def is_whole_file(path: str) -> bool:
    """False only where the format shows that bytes are missing."""
    import zipfile

    size = size_of(path)
    if not size:
        return False
    with open(path, "rb") as file:
        head = file.read(8)
        if path.endswith(".safetensors"):
            if len(head) < 8 or int.from_bytes(head, "little") > min(size, 100 << 20):
                return False
            length = int.from_bytes(head, "little")
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
            return size == 8 + length + max(ends, default=0)
    if head.startswith(b"PK") or path.endswith((".npz", ".zip")):
        with zipfile.ZipFile(path):  # reads the directory at the end of the archive
            return True
    return True  # .pt and .pth were plain pickles before torch 1.6


def is_whole(path: str) -> bool:
    try:
        if not os.path.isdir(path):
            return is_whole_file(path)
        if os.path.exists(os.path.join(path, "COMPLETE")):
            return True
        files = [os.path.join(top, name) for top, _, names in os.walk(path) for name in names]
        sharded = any(name.endswith(".distcp") for name in files)
        if sharded and not os.path.exists(os.path.join(path, ".metadata")):
            return False  # torch.distributed writes it last
        kinds = (".pt", ".pth", ".npz", ".zip", ".safetensors")
        if any(name.endswith((".tmp", ".part", ".incomplete")) for name in files):
            return False
        return bool(files) and all(is_whole_file(name) for name in files if name.endswith(kinds))
    except Exception as error:  # parsers of damaged bytes raise whatever they like: it is not whole
        note("checkpoint %s: %s: %s" % (path, type(error).__name__, error))
        return False


def fingerprint(path: str) -> tuple[int, int, int]:
    """(bytes, newest mtime_ns, number of entries): equal twice means that nobody wrote in between."""
    info = os.lstat(path)
    size, newest, count = info.st_size, info.st_mtime_ns, 1
    if stat.S_ISDIR(info.st_mode):
        size = 0
        for top, folders, names in os.walk(path):
            for name in folders + names:
                info = os.lstat(os.path.join(top, name))
                size += info.st_size if stat.S_ISREG(info.st_mode) else 0
                newest, count = max(newest, info.st_mtime_ns), count + 1
    return size, newest, count


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


class CheckpointScan:
    """Looks at one run's checkpoint folder again and again and says which entries are complete."""

    def __init__(self, run: Run) -> None:
        assert run.order is not None
        wanted = run.order.get("checkpoint") or {}
        self.run = run
        self.folder = os.path.normpath(os.path.join(run.folders()["ckpt"], wanted.get("path") or ""))
        self.pattern = step_pattern(wanted.get("pattern") or "")
        self.refused = False
        # name -> fingerprint, boottime of its first sight, complete, structurally whole (None: not looked yet)
        self.seen: dict[str, tuple[tuple[int, int, int], float, bool, bool | None]] = {}

    def look(self, dead: bool = False) -> list[dict[str, Any]]:
        """All entries, oldest step first; `dead`: nobody can write any more, so what is whole is complete."""
        found = []
        now = uptime()
        seen, self.seen = self.seen, {}
        open_paths: set[str] | None = None
        try:
            names = list_names(self.folder)
        except OSError as error:  # another user's folder: the run's end and the status must be told all the same
            if not self.refused:
                note("checkpoints are not looked for: %s" % error)
            self.refused, names = True, []
        for name in names:
            path = os.path.join(self.folder, name)
            step = step_of(name, self.pattern)
            if step is None or os.path.islink(path):
                continue
            try:
                mark = fingerprint(path)
                mtime = os.stat(path).st_mtime
            except OSError:
                continue  # removed meanwhile, or being renamed
            before, since, complete, whole = seen.get(name, (None, now, False, None))
            if before != mark:
                since, complete, whole = now, False, None
            marked = os.path.exists(os.path.join(path, "COMPLETE"))
            if not complete and (dead or marked or now - since >= SCAN_S):
                if open_paths is None:
                    open_paths = set() if dead else written_by(self.run.pids(), os.path.realpath(self.folder))
                inside = os.path.realpath(path)
                busy = any(item == inside or item.startswith(inside + "/") for item in open_paths)
                if marked or not busy:
                    whole = is_whole(path) if whole is None else whole
                    complete = whole
            self.seen[name] = (mark, since, complete, whole)
            found.append({"name": name, "step": step, "bytes": mark[0], "complete": complete, "mtime": mtime})
        return sorted(found, key=lambda item: (item["step"], item["name"]))


def checkpoints_of(run: Run) -> list[dict[str, Any]]:
    """The supervisor's last look; of a dead run always the final one, made here if need be."""
    kept = read_json(run.path("checkpoints.json"))
    if run.order is not None and run.ended is not None and not (kept and kept["final"]):
        return CheckpointScan(run).look(dead=True)
    return kept["list"] if kept else []

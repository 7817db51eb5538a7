"""Whether data fits, and whether it landed: the machine's own look at every file against the source's manifest.

Rules
- A file counts as landed when its size, its bytes and its readability by the job's own user are as the manifest has
  them; whoever copied it is not asked. Each thing that can be wrong has its own name (FAULTS).
- A check is cut into slices of some seconds; what was found good is noted beside the manifest with the file's times, so
  the next slice, and the next attempt on this machine, only looks at the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import time
from typing import TYPE_CHECKING, Any

from orchestrator.agent.asks import need
from orchestrator.agent.files import mark_of, note, read_text
from orchestrator.agent.layout import Refusal
from orchestrator.agent.machine import output_of

if TYPE_CHECKING:
    from collections.abc import Iterator

# What can be wrong with a file that should have landed.
FAULTS = (
    "missing", "zero-byte", "cut", "other-size", "other-bytes", "lfs-pointer", "dangling-link", "not-a-file",
    "wrong-owner", "wrong-mode", "not-readable", "extra",
)  # fmt: skip
IN_THE_WAY = ("wrong-owner", "not-a-file", "dangling-link")  # of a copy; removed from our own folder when asked
FAULTS_NAMED = 50  # of an answer; the others are counted
SLICE_S = 20.0
PARTIAL_FOLDER = ".gpujob-partial"  # of copies under way; as in orchestrator/sync.py
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
PIECE = 1 << 20  # as in orchestrator/datasets.py, where sampled hashes are made
PIECES = 5


def landed_command(ask: dict[str, Any]) -> dict[str, Any]:
    """One slice of a check: `done` when every file was looked at, else it is called again."""
    top, listed = need(ask, "path", str), need(ask, "manifest", str)
    single, ours = need(ask, "single", bool, False), need(ask, "ours", bool, False)
    mend = need(ask, "mend", str, "")
    until = time.monotonic() + float(need(ask, "seconds", (int, float), SLICE_S))
    if not os.path.isabs(top) or not os.path.isabs(listed):
        raise Refusal("invalid", "path and manifest: not absolute")
    if not os.path.exists(listed):
        raise Refusal("missing", "%s is not there" % listed)
    seen = read_seen(listed + ".seen")
    faults: list[dict[str, str]] = []
    counts: dict[str, int] = {}
    checked = size = 0
    done = True
    names = set()
    with open(listed + ".seen", "a", encoding="ascii") as notes:
        for entry in entries_of(listed):
            names.add(entry["path"])
            if not done:
                continue
            path = top if single else os.path.join(top, entry["path"])
            found = look_at_file(path, entry, seen, notes, ours)
            checked, size = checked + 1, size + max(entry["size"], 0)
            if found is not None:
                counts[found[0]] = counts.get(found[0], 0) + 1
                faults.append({"path": entry["path"], "fault": found[0], "detail": found[1]})
                if mend == "all" or (mend == "way" and found[0] in IN_THE_WAY):
                    clear_away(path)
            done = time.monotonic() < until
    if done and not single:
        for extra in extras(top, names):
            if ours and not faults:
                os.unlink(os.path.join(top, extra))
            elif not ours:
                counts["extra"] = counts.get("extra", 0) + 1
                faults.append({"path": extra, "fault": "extra", "detail": "is not part of the data"})
    return {
        "ok": True, "done": done, "checked": checked, "bytes": size, "count": len(names), "faults": counts,
        "named": faults[:FAULTS_NAMED],
    }  # fmt: skip


def clear_away(path: str) -> None:
    """Take away what a copy cannot write over; what cannot be removed either is named by the next check."""
    if not os.path.lexists(path):
        return
    try:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    except OSError as error:
        note("%s: %s" % (path, error))


def entries_of(listed: str) -> Iterator[dict[str, Any]]:
    """The files of a manifest, one by one."""
    with open(listed, encoding="ascii") as lines:
        for line in lines:
            yield json.loads(line)


def read_seen(path: str) -> dict[str, list[int]]:
    """Files that were found good, with the times that they had then. A line that was cut by a kill is left out."""
    seen = {}
    for line in read_text(path).splitlines():
        try:
            name, *times = json.loads(line)
        except ValueError:
            continue
        seen[name] = times
    return seen


def look_at_file(
    path: str, entry: dict[str, Any], seen: dict[str, list[int]], notes: Any, ours: bool
) -> tuple[str, str] | None:
    """The fault of one file with its words, None when it is as it must be."""
    try:
        info = os.lstat(path)
        if stat.S_ISLNK(info.st_mode):
            if not os.path.exists(path):
                return "dangling-link", "is a link to nothing, %s" % os.readlink(path)
            info = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return "missing", "is missing"
    except PermissionError:
        return "wrong-mode", "cannot be looked at: a folder above it may not be entered by user %d" % os.geteuid()
    if not stat.S_ISREG(info.st_mode):
        return "not-a-file", "is not a file"
    denied = denial(path, info, ours)
    if denied is not None:
        return denied
    if seen.get(entry["path"]) == mark_of(info) and info.st_size == entry["size"]:
        return None
    wrong = size_fault(path, info.st_size, entry["size"]) or bytes_fault(path, info, entry)
    if wrong is None:
        notes.write(json.dumps([entry["path"], *mark_of(info)]) + "\n")
    return wrong


def denial(path: str, info: os.stat_result, ours: bool) -> tuple[str, str] | None:
    """Owner and mode by name: a program would only say that it cannot open the file, or that it is not there."""
    whose = "belongs to user %d with mode %04o; the job runs as user %d" % (
        info.st_uid, stat.S_IMODE(info.st_mode), os.geteuid(),
    )  # fmt: skip
    readable = os.access(path, os.R_OK, effective_ids=os.access in os.supports_effective_ids)
    if info.st_uid != os.geteuid() and (ours or not readable):
        return "wrong-owner", whose
    if not readable or (info.st_uid == os.geteuid() and not info.st_mode & stat.S_IRUSR):
        return "wrong-mode", whose
    return None


def size_fault(path: str, size: int, wanted: int) -> tuple[str, str] | None:
    if wanted < 0:  # the server did not tell
        return None if size else ("zero-byte", "has no bytes")
    if size == wanted:
        return None
    if size == 0:
        return "zero-byte", "has no bytes instead of %d" % wanted
    with open(path, "rb") as file:
        if file.read(len(LFS_POINTER)) == LFS_POINTER:
            return "lfs-pointer", "is a Git LFS pointer instead of %d bytes" % wanted
    if size < wanted:
        return "cut", "was cut: %d of %d bytes" % (size, wanted)
    return "other-size", "has %d bytes instead of %d" % (size, wanted)


def bytes_fault(path: str, info: os.stat_result, entry: dict[str, Any]) -> tuple[str, str] | None:
    if not entry.get("sha256") and not entry.get("sha1_git"):
        return None
    try:
        with open(path, "rb") as file:
            if entry.get("sampled"):
                digest = hashlib.sha256(b"%d" % info.st_size)
                for piece in range(PIECES):
                    file.seek((info.st_size - PIECE) * piece // (PIECES - 1))
                    digest.update(file.read(PIECE))
            else:
                digest = hashlib.sha256() if entry.get("sha256") else hashlib.sha1(b"blob %d\0" % info.st_size)
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
            after = os.fstat(file.fileno())
    except OSError as error:
        return "not-readable", "cannot be read: %s" % error.strerror
    if mark_of(after) != mark_of(info):
        return "other-bytes", "is written to by somebody"
    wanted = entry.get("sha256") or entry.get("sha1_git")
    return None if digest.hexdigest() == wanted else ("other-bytes", "has other bytes")


def extras(top: str, names: set[str]) -> list[str]:
    """Files below `top` that no manifest names."""
    found = []
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name != PARTIAL_FOLDER]
        below = folder[len(top) :].strip("/")
        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        paths = ["%s/%s" % (below, name) if below else name for name in files + links]
        found += [path for path in paths if path not in names]
    return sorted(found)


# --- space ------------------------------------------------------------------------------------------------------------


def room_command(ask: dict[str, Any]) -> dict[str, Any]:
    """For each file system behind `places` ({"path", "bytes", "files"}: what is still to come there): what is free."""
    systems: dict[int, dict[str, Any]] = {}
    for place in need(ask, "places", list):
        path = need(place, "path", str)
        while not os.path.exists(path):
            path = os.path.dirname(path)
        info, disk = os.stat(path), os.statvfs(path)
        system = systems.setdefault(
            info.st_dev,
            {
                "path": path, "need": 0, "files": 0, "free": disk.f_bavail * disk.f_frsize,
                "total": disk.f_blocks * disk.f_frsize,
                # some file systems count no inodes
                "inodes_free": disk.f_favail if disk.f_files else None, "writable": os.access(path, os.W_OK),
                "quota_free": None, "quota_files": None,
            },
        )  # fmt: skip
        system["need"] += need(place, "bytes", int)
        system["files"] += need(place, "files", int)
    for device, free, files in quotas():
        for number, system in systems.items():
            if device == number:
                system["quota_free"], system["quota_files"] = free, files
    return {"ok": True, "systems": list(systems.values())}


def quotas() -> Iterator[tuple[int, int | None, int | None]]:
    """(device number, bytes free, files free) by the user's quotas; nothing where the tool is missing."""
    mounts = {}
    for line in read_text("/proc/mounts").splitlines():
        mounts[line.split()[0]] = line.split()[1]
    for line in output_of(["quota", "-w", "-v"], 5.0).splitlines():
        cells = line.replace("*", " ").split()
        if len(cells) < 7 or not cells[0].startswith("/"):
            continue
        numbers = [int(cell) for cell in cells[1:] if cell.isdigit()]  # a grace time is no number
        mounted = cells[0] if os.path.ismount(cells[0]) else mounts.get(cells[0])
        if len(numbers) < 6 or mounted is None:
            continue
        used, _, limit, files, _, files_limit = numbers[:6]
        bytes_free = max(0, limit - used) * 1024 if limit else None
        yield os.stat(mounted).st_dev, bytes_free, max(0, files_limit - files) if files_limit else None

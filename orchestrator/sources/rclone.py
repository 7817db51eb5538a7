"""`from: remote:path` of the user's own rclone: any of its stores, through this computer to the machine.

Rules: rclone runs here, with the user's own remotes; nothing of its configuration reaches a machine. It writes over the
rental's own SSH key and pinned host key, file by file, so a copy that was cut goes on with the next file.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from orchestrator.datasets import DataError, DataFile
from orchestrator.ssh_files import Target, pinned_keys
from orchestrator.sync import Progress

LIST_S = 600.0
WORDS = 400


def remotes() -> frozenset[str]:
    """Names of the user's remotes; empty without rclone."""
    if shutil.which("rclone") is None:
        return frozenset()
    ran = subprocess.run(["rclone", "listremotes"], capture_output=True, text=True, timeout=30, check=False)
    return frozenset(line.strip().rstrip(":") for line in ran.stdout.splitlines() if line.strip())


def look(source: str) -> tuple[list[DataFile], bool]:
    """Files below a remote's path, sorted, and whether it is a single file. Raises DataError."""
    command = ["rclone", "lsjson", "--recursive", "--files-only", "--hash", "--hash-type", "sha256", "--", source]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=LIST_S, check=False)
    except FileNotFoundError:
        raise DataError(
            "no store of that name is configured, and rclone is not installed here", where=source,
            next_step="add it below `stores` in config.yaml, or install rclone and `rclone config`",
        ) from None  # fmt: skip
    except subprocess.TimeoutExpired:
        raise DataError(f"rclone lists it for longer than {LIST_S:g} s", where=source) from None
    if ran.returncode != 0:
        raise DataError(f"rclone: {_last(ran.stderr)}", where=source, next_step=f"rclone lsf {source}")
    rows: list[dict[str, Any]] = json.loads(ran.stdout)
    if not rows:
        raise DataError("there is nothing below it", where=source)
    files = [_file(row) for row in rows]
    name = source.rpartition(":")[2].rstrip("/").rpartition("/")[2]
    single = len(files) == 1 and files[0].path == name
    return sorted(files, key=lambda file: os.fsencode(file.path)), single


def _file(row: dict[str, Any]) -> DataFile:
    digest = str((row.get("Hashes") or {}).get("sha256", ""))
    return DataFile(str(row["Path"]), int(row["Size"]), digest, more={"etag": str(row.get("ModTime", ""))})


def send(
    target: Target, source: str, dest: str, files: Iterable[str], single: bool, tell: Callable[[Progress], None]
) -> None:
    """Copy `files` below `source` to the machine. Raises DataError with rclone's last words."""
    hosts = "".join(f"[{target.host}]:{target.port} {line}\n" for line in pinned_keys(target))
    with tempfile.TemporaryDirectory(prefix="gpujob-rclone-") as folder:
        known, listed = Path(folder, "known_hosts"), Path(folder, "files")
        known.write_text(hosts)
        listed.write_text("".join(f"{name}\n" for name in files))
        backend = f":sftp,host={target.host},port={target.port},user={target.user},key_file='{target.key_file}'"
        backend += f",known_hosts_file='{known}',shell_type=unix:{dest}"
        verb = ["copyto", "--"] if single else ["copy", "--files-from-raw", str(listed), "--"]
        command = [
            "rclone",
            "--use-json-log",
            "--stats",
            "1s",
            "--stats-log-level",
            "NOTICE",
            "--transfers",
            "8",
            *verb,
        ]
        child = subprocess.Popen(
            [*command, source, backend], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        last = ""
        with child:
            assert child.stderr is not None
            for line in child.stderr:
                last = _told(line, tell) or last
    if child.returncode != 0:
        raise DataError(f"rclone: {last[:WORDS] or child.returncode}", where=source)


def _told(line: str, tell: Callable[[Progress], None]) -> str:
    """Hand on the figures of a line of rclone's log; its words when it has none."""
    try:
        row = json.loads(line)
    except ValueError:
        return line.strip()
    stats = row.get("stats")
    if not stats:
        return str(row.get("msg", "")).strip()
    tell(Progress(int(stats.get("bytes", 0)), int(stats.get("totalBytes", 0)) or None, float(stats.get("speed", 0))))
    return ""


def _last(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:WORDS] if lines else "it said nothing"

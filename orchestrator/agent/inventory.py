"""Commands that only look: files, changed files, the environment that results depend on."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import sys
from typing import TYPE_CHECKING, Any

from orchestrator.agent.asks import need, need_name, need_run
from orchestrator.agent.container import image_of
from orchestrator.agent.files import Noted, mark_of
from orchestrator.agent.layout import HOME, Refusal
from orchestrator.agent.machine import cpu_count, disk, memory, nvidia_smi, output_of
from orchestrator.agent.runs import Run, all_runs, job_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HASHERS = 4
HASHED_ASIDE = 1 << 20  # bytes: passing a smaller file to another thread costs more than its hash


def manifest_command(ask: dict[str, Any]) -> dict[str, Any]:
    import fnmatch

    top, pattern = need(ask, "path", str), need(ask, "pattern", str, "") or "*"
    names = set(need(ask, "names", list)) if "names" in ask else None
    if not os.path.isabs(top):
        raise Refusal("invalid", "path: %r is not absolute" % top)
    if not os.path.lexists(top):
        raise Refusal("missing", "%s is not there" % top)
    kind = "link" if os.path.islink(top) else "folder" if os.path.isdir(top) else "file"
    files = [entry for entry in walk_files(top) if fnmatch.fnmatchcase(entry["path"], pattern)]
    if names is not None:
        files = [entry for entry in files if entry["path"] in names]
    if ask.get("hash"):
        base = top if os.path.isdir(top) and not os.path.islink(top) else os.path.dirname(top)
        files = hashed_all(base, files)
    answer: dict[str, Any] = {"ok": True, "files": files, "kind": kind}
    return {**answer, "leads_to": os.readlink(top)} if kind == "link" else answer


def walk_files(top: str, skip: Callable[[str], bool] = lambda name: False) -> Iterator[dict[str, Any]]:
    """Files and links below a folder by relative path; a single file or link by its name. What cannot be looked at
    is named with an `error`: left out, it would be lost without a word; raised, it would cost all the others."""
    unread: list[OSError] = []
    if os.path.islink(top) or not os.path.isdir(top):
        names = [(os.path.basename(top), top)]
    else:
        names = []
        for folder, folders, files in os.walk(top, onerror=unread.append):
            folders[:] = sorted(name for name in folders if not skip(name))
            links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
            paths = [os.path.join(folder, name) for name in sorted(files + links) if not skip(name)]
            names += [(os.path.relpath(path, top), path) for path in paths]
    for name, path in names:
        try:
            info = os.lstat(path)
            if stat.S_ISLNK(info.st_mode):
                yield {"path": name, "link": os.readlink(path)}
            elif stat.S_ISREG(info.st_mode):
                yield {"path": name, "size": info.st_size, "mtime_ns": info.st_mtime_ns}
        except FileNotFoundError:
            continue
        except OSError as error:
            yield {"path": name, "error": error.strerror}
    for problem in unread:
        if not isinstance(problem, FileNotFoundError):
            yield {"path": os.path.relpath(problem.filename, top), "error": problem.strerror}


def hashed_all(base: str, files: list[dict[str, Any]], noted: Noted | None = None) -> list[dict[str, Any]]:
    """The entries as `hashed` has them, without those that went away; large files on several cores at once.

    `noted`: hashes that were taken before, by absolute path; good as long as the file has the same marks.
    """
    from concurrent.futures import ThreadPoolExecutor

    def read(entry: dict[str, Any]) -> dict[str, Any] | None:
        path = os.path.join(base, entry["path"])
        known = noted.get(path) if noted and "size" in entry else None
        with contextlib.suppress(FileNotFoundError):
            if known is not None and mark_of(os.lstat(path)) == known[0]:
                return {**entry, "sha256": known[1]}
        return entry if "link" in entry else hashed(path, entry)

    with ThreadPoolExecutor(max(1, min(HASHERS, cpu_count()))) as pool:
        large = {each["path"]: pool.submit(read, each) for each in files if each.get("size", 0) >= HASHED_ASIDE}
        found = [large[entry["path"]].result() if entry["path"] in large else read(entry) for entry in files]
    return [entry for entry in found if entry is not None]


def hashed(path: str, entry: dict[str, Any]) -> dict[str, Any] | None:
    """The entry with its sha256; null where the file was written to meanwhile, None where it went away. With an
    `error` where it cannot be read."""
    if "error" in entry:
        return entry
    try:
        with open(path, "rb") as file:
            before, digest = os.fstat(file.fileno()), hashlib.sha256()
            for block in iter(lambda: file.read(1 << 20), b""):
                digest.update(block)
            after = os.fstat(file.fileno())
    except FileNotFoundError:
        return None
    except OSError as error:
        return {**entry, "error": error.strerror}
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    found = {"size": after.st_size, "mtime_ns": after.st_mtime_ns, "sha256": digest.hexdigest() if same else None}
    return {**entry, **found}


CACHES = re.compile(
    r"(__pycache__|\.cache|\.git|\.venv|venv|node_modules|\.ipynb_checkpoints|\.\w+_cache|.*\.pyc|\.DS_Store)\Z"
)


def changed_command(ask: dict[str, Any]) -> dict[str, Any]:
    run, job = need_run(ask), need_name(ask, "job")
    if run.order is None or run.order["job"] != job:
        raise Refusal("missing", "%s was never ordered for %s" % (run.key, job))
    top = run.folders()["work"]
    try:
        since = os.stat(run.path("prepared")).st_ctime_ns
    except FileNotFoundError:
        return {"ok": True, "base": top, "files": []}  # nothing of the job itself has run
    files = []
    for entry in walk_files(top, lambda name: CACHES.match(name) is not None):
        with contextlib.suppress(FileNotFoundError):
            if "error" in entry or os.lstat(os.path.join(top, entry["path"])).st_ctime_ns >= since:
                files.append(entry)
    return {"ok": True, "base": top, "files": files}


def newest_first(job: str | None) -> list[Run]:
    """The runs of a job on this machine."""
    found = [(run.order["at"], run) for run in all_runs() if run.order is not None and run.order["job"] == job]
    return [run for _, run in sorted(found, key=lambda pair: pair[0], reverse=True)]


def environment_command(ask: dict[str, Any]) -> dict[str, Any]:
    """What results depend on. With `job`, torch and the packages are those of the job's own virtual environment."""
    work = os.path.join(job_folder(need_name(ask, "job")), "work", "base") if ask.get("job") else HOME
    candidates = [os.path.join(work, name, "bin", "python") for name in (".venv", "venv")]
    python = next((path for path in candidates if os.path.exists(path)), shutil.which("python3") or sys.executable)
    smi = nvidia_smi()
    fields = "--query-gpu=name,memory.total,driver_version,uuid"
    names = ("name", "memory_mib", "driver", "uuid")
    text = output_of([smi, fields, "--format=csv,noheader,nounits"], 30.0) if smi else ""
    rows = [[cell.strip() for cell in line.split(",")] for line in text.splitlines()]
    gpus = [{name: row[i] for i, name in enumerate(names)} for row in rows if len(row) == len(names)]
    cuda = re.search(r"CUDA Version:\s*([\d.]+)", output_of([smi], 30.0)) if smi else None
    probe = (
        "import json, torch; c = torch.cuda; print(json.dumps({'version': torch.__version__,"
        " 'cuda': torch.version.cuda, 'available': c.is_available(), 'devices': c.device_count()}))"
    )
    torch = output_of([python, "-c", probe], 60.0).strip()
    used, total = memory()
    return {
        "ok": True,
        "driver": gpus[0]["driver"] if gpus else None,
        "cuda": cuda.group(1) if cuda else None,  # the newest that the driver can serve, not a toolkit
        "gpus": gpus,
        "torch": json.loads(torch.splitlines()[-1]) if torch else None,
        "pip": output_of([python, "-m", "pip", "freeze"], 60.0).splitlines(),
        "python": output_of([python, "-c", "import platform; print(platform.python_version())"], 20.0).strip(),
        "kernel": os.uname().release,
        "image": next((image_of(run) for run in newest_first(ask.get("job")) if image_of(run)), None),
        "hostname": os.uname().nodename,
        "cpus": cpu_count(),
        "memory": {"used": used, "total": total},
        "disk": disk(),
    }

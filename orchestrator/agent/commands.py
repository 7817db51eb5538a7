"""Commands that change something: each admits its asker first, under the command lock."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal
import time
from typing import Any

from orchestrator.agent.asks import admit, need, need_name, need_run
from orchestrator.agent.checkpoints import checkpoints_of
from orchestrator.agent.ends import Deadline, boot_id, uptime
from orchestrator.agent.files import (
    command_lock,
    list_names,
    read_json,
    read_text,
    replace,
    size_of,
    to_json,
    write_whole,
)
from orchestrator.agent.launch import start_command
from orchestrator.agent.layout import CONTROL, HOME, STAGES, Refusal, control
from orchestrator.agent.preflight import preflight_command
from orchestrator.agent.processes import supervisor_pid, wake_supervisor
from orchestrator.agent.runs import CLOSE_S, Run, all_runs, end_run, job_folder, request_signal
from orchestrator.agent.upload import forget_access


def arm_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Move the end. `now` is the controller's clock: with it a machine whose clock is wrong still ends in time."""
    end, grace = float(need(ask, "end", (int, float))), float(need(ask, "grace_s", (int, float)))
    action = need(ask, "action", str)
    if action not in ("kill", "poweroff"):
        raise Refusal("invalid", "action: %r is neither kill nor poweroff" % action)
    now = float(need(ask, "now", (int, float), time.time()))
    with command_lock():
        admit(ask)
        up = uptime()
        Deadline(end, boot_id(), up, up + end - now, grace, action, True).save()
        if "notice_file" in ask:
            replace(control("notice_file"), need(ask, "notice_file", str).encode() + b"\n")
    start_command({})
    return {"ok": True, "end": end}


def prepare_command(ask: dict[str, Any]) -> dict[str, Any]:
    job, mount = need_name(ask, "job"), need(ask, "data_mount", str, "")
    with command_lock():
        admit(ask)
        known = read_text(control("base")).strip()
        if mount and known and mount != known:
            raise Refusal("conflict", "this machine's data is already below %s" % known)
        if mount and not os.path.isdir(mount):
            raise Refusal("missing", "the data disk %s is not there" % mount)
        if mount and not known:
            replace(control("base"), mount.encode() + b"\n")
    root = job_folder(job)
    names = ("code", "work", "data", "ckpt", "out", "resume")
    for name in (*names, "manifests"):
        os.makedirs(os.path.join(root, name), exist_ok=True)
    at = {name: os.path.join(root, name) for name in names}
    answer = {
        "ok": True,
        "base": root,
        "home": HOME,
        "control": CONTROL,
        "code": at["code"],
        "data": at["data"],
        "work_root": at["work"],
        "ckpt_root": at["ckpt"],
        "out_root": at["out"],
        "resume_root": at["resume"],
    }
    if isinstance(ask.get("preflight"), dict):  # one start of Python less than a command of its own
        places = {"data": at["data"], "ckpt": at["ckpt"], "out": at["out"]}
        answer["preflight"] = preflight_command({**ask["preflight"], "places": places})
    return answer


def thin_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Remove checkpoints of a run that are durable elsewhere: the disk runs short. One that has changed since stays."""
    run = need_run(ask)
    wanted = {need(each, "name", str): each for each in need(ask, "names", list) if isinstance(each, dict)}
    removed = []
    with command_lock():
        admit(ask)
        if run.order is None:
            raise Refusal("missing", "%s was never ordered" % run.key)
        folder = os.path.join(run.folders()["ckpt"], (run.order.get("checkpoint") or {}).get("path") or "")
        there = [item for item in checkpoints_of(run) if item["complete"]]
        for item in there[:-1]:  # never the newest
            each = wanted.get(item["name"])
            if each is None or (item["bytes"], item["mtime"]) != (each.get("bytes"), each.get("mtime")):
                continue
            path = os.path.join(folder, item["name"])
            gone = os.path.join(folder, ".gpujob-gone-" + item["name"])
            with contextlib.suppress(FileNotFoundError):  # the program removes old ones itself, too
                os.rename(path, gone)  # never half of it under its name
                shutil.rmtree(gone) if os.path.isdir(gone) else os.unlink(gone)
                removed.append(item["name"])
    return {"ok": True, "removed": removed}


def check_order(ask: dict[str, Any]) -> dict[str, Any]:
    """The order as it is kept: everything but epoch, nonce, scripts and the values of the secrets."""
    stages = need(ask, "stages", list)
    names = [stage.get("name") if isinstance(stage, dict) else None for stage in stages]
    if not names or names != [name for name in STAGES if name in names]:
        raise Refusal("invalid", "stages: %r are not some of %s in this order" % (names, ", ".join(STAGES)))
    for stage in stages:
        need(stage, "script", str)
        if stage.get("once"):
            need_name(stage, "once")
    for key in ("env", "secrets"):
        for name, value in need(ask, key, dict, {}).items():
            if not isinstance(value, str) or "\0" in name + value or not name or "=" in name:
                raise Refusal("invalid", "%s.%s: not a variable's name and text" % (key, name))
    if not hasattr(signal, "SIG" + need(ask, "signal", str, "TERM")):
        raise Refusal("invalid", "signal: %r is not known here" % ask["signal"])
    if ask.get("workspace", "base") not in ("base", "own") or ask.get("resume_mode", "env") not in ("env", "folder"):
        raise Refusal("invalid", "workspace is base or own, resume_mode is env or folder")
    if ask.get("resume_from"):
        need_name(ask, "resume_from")
    for variable, given in need(ask, "files", dict, {}).items():
        if not isinstance(given, dict) or not isinstance(given.get("text"), str) or "=" in variable:
            raise Refusal("invalid", "files.%s: not a name and a text" % variable)
        need_name(given, "name")
    if ask.get("after"):
        need_name(ask, "after")
        need(ask, "room_s", (int, float), 0)
    if need(ask, "limit", dict, {}):
        check_limit(ask["limit"])
    if ask.get("container") is not None:
        check_container(need(ask, "container", dict))
    digest = [{**stage, "script": hashlib.sha256(stage["script"].encode()).hexdigest()} for stage in stages]
    need(ask, "code", str, "")
    hidden = ("epoch", "nonce", "secrets", "stages")
    kept = {key: value for key, value in ask.items() if key not in hidden}
    return {**kept, "stages": digest, "secret_names": sorted(ask.get("secrets", {}))}


def check_limit(limit: dict[str, Any]) -> dict[str, Any]:
    return {"s": need(limit, "s", (int, float)), "why": need(limit, "why", str)}


def same_order(order: dict[str, Any]) -> dict[str, Any]:
    """What makes two orders the same: not when they came or begin, nor what was left of time and money by then."""
    other = ("boot_id", "at", "boot_at", "look", "smoke", "limit", "after", "room_s")
    return {key: value for key, value in order.items() if key not in other}


def check_container(box: dict[str, Any]) -> None:
    image = need(box, "image", str)
    if not image or image.startswith("-") or not image.isprintable() or " " in image:
        raise Refusal("invalid", "container.image: %r is no image" % image)
    need(box, "gpus", int, 0)
    need(box, "shm_bytes", int, 0)
    for path in need(box, "mounts", list, []):
        if not isinstance(path, str) or not os.path.isabs(path) or ":" in path:
            raise Refusal("invalid", "container.mounts: %r is no absolute path" % (path,))


def order_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Admit one run. `order.json` comes last: with it everything else of the run is there."""
    run, job = need_run(ask), need_name(ask, "job")
    order = check_order(ask)
    with command_lock():
        admit(ask)
        if run.closed:
            raise Refusal("closed", "%s is closed: it never starts again" % run.key)
        if run.order is not None:
            if same_order(run.order) != same_order(order):
                raise Refusal("conflict", "%s was ordered before, with other contents" % run.key)
            if run.staged and not ask.get("after"):
                run.begin()  # the word that it waits for
            answer = {"ok": True, "already": True}
        else:
            for other in all_runs():
                if other.order is not None and other.ended is None and other.key != ask.get("after"):
                    raise Refusal("busy", "%s is not yet dead" % other.key)
            if ask.get("after") and Run(ask["after"]).order is None:
                raise Refusal("missing", "%s, after which it is to begin, was never ordered" % ask["after"])
            deadline = Deadline.load()
            if deadline and deadline.remaining() <= 0:
                raise Refusal("closed", "the machine's end has passed")
            if not os.path.isdir(os.path.join(job_folder(job), "code")):
                raise Refusal("missing", "the job's folders are not there: prepare comes first")
            resume = ask.get("resume_from")
            if resume and not os.path.exists(os.path.join(job_folder(job), "resume", run.key, resume)):
                raise Refusal("missing", "resume/%s/%s is not there" % (run.key, resume))
            admit_order(run, ask, order)
            answer = {"ok": True, "already": False}
    if run.ended is None:
        start_command({})
        wake_supervisor()
    return answer


def admit_order(run: Run, ask: dict[str, Any], order: dict[str, Any]) -> None:
    os.makedirs(run.folder, mode=0o700, exist_ok=True)
    for stage in ask["stages"]:
        write_whole(run.path(stage["name"] + ".sh"), stage["script"].encode("utf-8", "surrogateescape"))
    write_whole(run.path("reserve"), os.urandom(64 << 10))  # room for the exit code on a full disk
    if ask.get("secrets"):
        write_whole(run.path("secrets"), to_json(ask["secrets"]))
    for given in ask.get("files", {}).values():
        write_whole(run.path("given." + given["name"]), given["text"].encode("utf-8", "surrogateescape"))
    now = {"boot_id": boot_id(), "at": time.time(), "boot_at": uptime()}
    replace(run.path("order.json"), to_json({**order, **now}))


def signal_command(ask: dict[str, Any]) -> dict[str, Any]:
    run, why, grace = need_run(ask), need(ask, "why", str), float(need(ask, "grace_s", (int, float)))
    with command_lock():
        admit(ask)
        if run.order is None and not run.closed:
            raise Refusal("missing", "%s was never ordered" % run.key)
        if run.ended is not None or run.closed:
            return {"ok": True, "already": True, "ended": run.ended is not None}
        before = run.signalled
        request = request_signal(run, why, grace)
    if grace <= 0:
        end_run(run, CLOSE_S)
    left = max(0.0, round(request["kill_at"] - uptime(), 1))
    return {"ok": True, "already": before is not None, "why": request["why"], "grace_left": left}


def limit_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Move how long a run may last. One that was told to stop already stays told."""
    run = need_run(ask)
    limit = check_limit(need(ask, "limit", dict))
    with command_lock():
        admit(ask)
        if run.order is None:
            raise Refusal("missing", "%s was never ordered" % run.key)
        if run.ended is None and not run.closed:
            replace(run.path("limit.json"), to_json(limit))
    return {"ok": True, "ended": run.ended is not None}


def close_command(ask: dict[str, Any]) -> dict[str, Any]:
    """First the key, then the processes: whatever happens in between, nothing can start any more."""
    run = need_run(ask)
    with command_lock():
        admit(ask)
        close_key(run)
    dead = run.ended is not None or end_run(run, CLOSE_S)
    return {"ok": True, "dead": dead, "logs": {name: size_of(run.log_path(name)) for name in run.logs()}}


def withdraw_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Take back what was ordered ahead and has not begun: its key is closed, and nothing of it has run."""
    run = need_run(ask)
    with command_lock():
        admit(ask)
        if run.order is not None and not run.staged:
            raise Refusal("busy", "%s has begun" % run.key)
        close_key(run)
        if run.order is not None:
            run.finish(stage=None, rc=None, withdrawn=True)
    return {"ok": True}


def close_key(run: Run) -> None:
    os.makedirs(run.folder, mode=0o700, exist_ok=True)
    if not run.closed:
        replace(run.path("closed"), b"")
    forget_access(run)


def wipe_command(ask: dict[str, Any]) -> dict[str, Any]:
    """Nothing of the job stays but its closed keys: what has run here never runs again."""
    job = need_name(ask, "job")
    with command_lock():
        admit(ask)
        runs = [run for run in all_runs() if run.order is not None and run.order["job"] == job]
        for run in runs:
            close_key(run)
    left = ["run " + run.key for run in runs if run.ended is None and not end_run(run, CLOSE_S)]
    until = uptime() + 2.0
    while supervisor_pid() and uptime() < until and not all(os.path.exists(run.path("reported")) for run in runs):
        time.sleep(0.02)  # it may be at its last look, and would leave that behind
    keep = ("closed", "ended.json", "reported", "claim")
    for run in runs:
        if run.ended is not None:
            remove([run.path(name) for name in list_names(run.folder) if name not in keep])
    setups = [control(name) for name in list_names(CONTROL) if name.startswith("setup.")]
    remove([path for path in setups if (read_json(path) or {}).get("job") == job])
    return {"ok": True, "left": left + remove([job_folder(job)])}


def remove(paths: list[str]) -> list[str]:
    """Delete files and folders, also write-protected ones; returns what is still there."""
    for path in paths:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
            for folder, _, _ in os.walk(path):
                with contextlib.suppress(OSError):
                    os.chmod(folder, 0o700)
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                os.unlink(path)
    return [path for path in paths if os.path.lexists(path)]

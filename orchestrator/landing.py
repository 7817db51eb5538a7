"""Data on its way to a machine: does it fit, is it sent, did it land. Runs in a worker thread, once before each run.

Rules
- Before a byte is sent: the source is as it was at apply, and the machine has room for all of it.
- After: the machine itself compares every file with the manifest. What is wrong is sent once more, then named.
- What no repetition can mend ends the job (data); a transfer that failed is repeated; a machine too small is left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from orchestrator import datasets, secrets, space, sync
from orchestrator.datasets import DataError, Manifest
from orchestrator.execute import WorkFailed
from orchestrator.home import Home
from orchestrator.model import Job, Reason
from orchestrator.ssh_errors import AgentRefused, DiskFull, TransferError, Unreachable
from orchestrator.sync import Progress

if TYPE_CHECKING:
    from jobspecs.schema import DataSource, JobSpec
    from orchestrator import ssh
    from orchestrator.transfers import Teller

log = structlog.get_logger()

POLL_S = 0.5  # how often a fetch is asked how far it is
LISTEN_S = 2.0  # the agent answers when it ends, after so long at the latest: a start of it costs 0.15 CPU-s
DEAF_S = 600.0  # for so long a fetch may go on unheard before the transfer counts as failed
CHECK_S = 90.0  # one slice of a check takes 20 s, and a listing of 100,000 files before it
# What another copy cannot mend: it was like that at the source, or the place on the machine is not ours.
LASTING = frozenset({"lfs-pointer", "dangling-link", "wrong-owner", "wrong-mode", "not-a-file", "extra"})
FETCHED = frozenset({"https", "hf", "s3"})  # kinds that the machine brings itself
HUB_TOKEN = "HF_TOKEN"
SMALL_FILE = 1 << 20  # bytes; of a set whose files are smaller in the mean each connection mostly waits
PARALLEL_SMALL = 32  # files at one time then
SHOWN = 5

Ask = Callable[..., dict[str, Any]]  # the agent's command by its name, with epoch and nonce


@dataclass(frozen=True)
class Landing:
    """One data source on its way: where it lands, and whether that place is ours alone."""

    entry: DataSource
    manifest: Manifest
    dest: str
    ours: bool
    listed: str  # the manifest's path on the machine


def land(
    connection: ssh.Connection, home: Home, job: Job, spec: JobSpec, folders: Mapping[str, Any], teller: Teller,
    checkpoint: int, ask: Ask,
) -> None:  # fmt: skip
    """Bring all data of `spec` and prove that it is there. `checkpoint`: bytes of one, 0 when unknown. `ask`: the
    agent, also over a connection that was made anew.

    Raises WorkFailed: with Reason.DATA for what repeating cannot mend, Reason.BAD_HOST for a machine that is too small.
    """
    landings = [_landing(home, job, entry, folders) for entry in spec.data]
    for each in landings:
        _refuse_changed(home, each)
    # a run before this one on the machine has brought it, or a leg beside it
    landings = [each for each in landings if not _landed_before(connection, each)]
    _refuse_small(connection, spec, landings, str(folders["ckpt_root"]), checkpoint)
    for each in landings:
        try:
            way = _Fetching(connection, home, job, spec, ask) if each.manifest.kind in FETCHED else None
            _bring(connection, home, each, teller, way)
        except DiskFull as full:
            if full.side == "here":
                raise
            raise WorkFailed(f"data {each.entry.path}: {full}", Reason.BAD_HOST) from full


def _landing(home: Home, job: Job, entry: DataSource, folders: Mapping[str, Any]) -> Landing:
    stored = job.data_manifests.get(entry.path)
    try:
        if stored is not None and "kind" in stored and (home.manifests / str(stored["hash"])).exists():
            manifest = Manifest.of(stored)
        else:  # of books that know the hash alone
            source = Path(job.base_dir, Path(entry.source).expanduser())
            manifest = datasets.manifest_of(source, home, sample=entry.sample, allow_empty=True)
            if stored is not None and stored.get("hash") != manifest.hash:
                raise DataError(
                    "it has changed since apply; `apply --replace` takes it as it is now", where=str(source)
                )
    except DataError as error:
        raise WorkFailed(f"data {entry.path}: {error.where}: {error}", Reason.DATA) from error
    absolute = entry.path.startswith("/")
    dest = entry.path.rstrip("/") if absolute else f"{folders['data']}/{entry.path.rstrip('/')}"
    return Landing(entry, manifest, dest, not absolute, f"{folders['base']}/manifests/{manifest.hash}")


def _refuse_changed(home: Home, each: Landing) -> None:
    if each.manifest.kind != "local":
        return
    try:
        changed = datasets.changes(home, each.manifest)
    except (DataError, OSError) as error:
        raise WorkFailed(f"data {each.entry.path}: {each.manifest.source}: {error}", Reason.DATA) from error
    if changed:
        raise WorkFailed(
            f"data {each.entry.path}: {each.manifest.source} has changed since apply ({datasets.names(changed)}); "
            "`apply --replace` takes it as it is now",
            Reason.DATA,
        )


def _landed_before(connection: ssh.Connection, each: Landing) -> bool:
    """Whether all of it is there already, by the machine's own look."""
    try:
        seen = _check(connection, each, lambda _: None)
    except AgentRefused as refused:
        if refused.error != "missing":
            raise
        return False  # it was never sent there
    return not seen["faults"]


def _refuse_small(
    connection: ssh.Connection, spec: JobSpec, landings: list[Landing], ckpt_root: str, checkpoint: int
) -> None:
    places = [{"path": each.dest, "bytes": each.manifest.bytes, "files": each.manifest.count} for each in landings]
    if checkpoint:
        places.append({"path": ckpt_root, "bytes": space.kept(spec, checkpoint), "files": 0})
    if not places:
        return
    seen = connection.agent("room", {"places": places}, CHECK_S)
    short = space.shortage(space.System.of(each) for each in seen.get("systems", []))
    if short:
        mode = Reason.DATA if "may not be written" in short else Reason.BAD_HOST
        raise WorkFailed(f"{short}; `disk: {{data: ...}}` asks for more", mode)


def _bring(
    connection: ssh.Connection, home: Home, each: Landing, teller: Teller, fetching: _Fetching | None = None
) -> None:
    """Send one source and check it; what is wrong is sent once more."""
    path, manifest = each.entry.path, each.manifest
    listed = teller.of(f"list of data {path}")
    sync.push(connection.target, home.manifests / manifest.hash, each.listed, progress=listed)
    tell = teller.of(f"data {path}", manifest.bytes)
    try:
        if fetching is not None:
            fetching.fetch(each, tell)
        else:
            _send(connection, home, each, tell)
    except TransferError as error:
        if type(error) is not TransferError:
            raise
        log.warning("the check decides", data=path, why=str(error))  # "some files were not copied" names one of them
    check = teller.of(f"check of data {path}", manifest.bytes)
    there = fetching is not None or each.manifest.kind == "rclone"  # what is wrong must go, to be brought again
    seen = _check(connection, each, check, mend="all" if there and each.ours else "way" if each.ours else "")
    if not seen["faults"]:
        return
    if fetching is not None:
        fetching.fetch(each, tell)
    elif there:
        _send(connection, home, each, tell)
    else:
        _send_again(connection, home, each, seen, tell)
    seen = _check(connection, each, check)
    if seen["faults"]:
        raise _named(home, each, seen)


def _send(connection: ssh.Connection, home: Home, each: Landing, tell: Callable[[Progress], None]) -> None:
    if each.manifest.kind == "rclone":
        _by_rclone(connection, home, each, tell)
        return
    source = Path(each.manifest.source)
    # A run before this one on the machine may have left files that the data no longer has; an absolute path may hold
    # what is not ours, so there they are only reported.
    wanted = [file.path for file in datasets.load(home, each.manifest)] if each.manifest.sample < 1 else None
    sync.push(
        connection.target, source, each.dest, copy_links=True, owner_may=True, files_from=wanted,
        delete=each.ours and source.is_dir() and wanted is None, progress=tell,
    )  # fmt: skip


def _send_again(
    connection: ssh.Connection, home: Home, each: Landing, seen: Mapping[str, Any], tell: Callable[[Progress], None]
) -> None:
    named, count = seen["named"], sum(seen["faults"].values())
    source = Path(each.manifest.source)
    some = [fault["path"] for fault in named if fault["fault"] != "extra"]
    if each.manifest.single:
        sync.push(connection.target, source, each.dest, copy_links=True, owner_may=True, again=True, progress=tell)
    elif len(named) == count and some:
        sync.push(
            connection.target, source, each.dest, copy_links=True, owner_may=True, again=True, files_from=some,
            progress=tell,
        )  # fmt: skip
    elif some:
        sync.push(connection.target, source, each.dest, copy_links=True, owner_may=True, checksum=True, progress=tell)


def _by_rclone(connection: ssh.Connection, home: Home, each: Landing, tell: Callable[[Progress], None]) -> None:
    from orchestrator.sources import rclone

    files = (file.path for file in datasets.load(home, each.manifest))
    try:
        rclone.send(connection.target, each.manifest.source, each.dest, files, each.manifest.single, tell)
    except DataError as error:
        raise WorkFailed(f"data {each.entry.path}: {error.where}: {error}") from error


class _Fetching:
    """Data that the machine brings itself: told where to, then only watched."""

    def __init__(self, connection: ssh.Connection, home: Home, job: Job, spec: JobSpec, ask: Ask) -> None:
        self.connection, self.home, self.job, self.spec, self.ask = connection, home, job, spec, ask

    def fetch(self, each: Landing, tell: Callable[[Progress], None]) -> None:
        """Until the machine has all of it. Addresses that ended meanwhile are made anew as long as bytes arrive."""
        arrived = -1
        while True:
            state = self._watch(each, self._start(each), tell)
            if state["state"] == "done":
                return
            error, so_far = str(state.get("error", "")), int(state.get("bytes", 0))
            if error == "denied" and each.manifest.kind == "s3" and so_far > arrived:
                arrived = so_far
                continue
            raise self._failed(each, state)

    def _start(self, each: Landing) -> str:
        manifest, ident = each.manifest, f"{self.job.id}.{each.manifest.hash[:16]}"
        given: dict[str, Any] = {"base": str((manifest.origin or {}).get("base", "")), "headers": {}}
        if manifest.kind == "hf" and HUB_TOKEN in self.spec.secrets:
            token = secrets.load(self.home, self.job.id).get(HUB_TOKEN, "")
            given["headers"] = {"Authorization": f"Bearer {token}"} if token else {}
        if manifest.kind == "s3":
            given["urls"] = self._send_addresses(each)
        if manifest.bytes < SMALL_FILE * manifest.count:
            given["parallel"] = PARALLEL_SMALL
        self.ask(
            "fetch", id=ident, job=self.job.id, manifest=each.listed, dest=each.dest, single=manifest.single, **given
        )
        return ident

    def _send_addresses(self, each: Landing) -> str:
        from orchestrator.config import load_config
        from orchestrator.sources import store

        here = self.home.job(self.job.id) / "addresses" / each.manifest.hash
        there = f"{each.listed}.urls"
        try:
            files = datasets.load(self.home, each.manifest)
            store.addresses(each.manifest.source, files, load_config(self.home).stores, self.home, here)
            sync.push(self.connection.target, here, there)
        except DataError as error:
            raise WorkFailed(f"data {each.entry.path}: {error.where}: {error}") from error
        finally:
            here.unlink(missing_ok=True)
        return there

    def _watch(self, each: Landing, ident: str, tell: Callable[[Progress], None]) -> Mapping[str, Any]:
        began, heard = time.monotonic(), time.monotonic()
        while True:
            try:
                asked = time.monotonic()
                state = self.ask("fetched", id=ident, wait=LISTEN_S)
            except Unreachable:
                if time.monotonic() - heard > DEAF_S:
                    raise
                time.sleep(POLL_S * 4)  # it goes on there; the watcher is connecting again
                continue
            heard = time.monotonic()
            so_far = int(state.get("bytes", 0))
            tell(Progress(so_far, each.manifest.bytes, so_far / max(heard - began, 0.001)))
            if state.get("state") != "running":
                return state
            time.sleep(max(0.0, asked + POLL_S - time.monotonic()))  # of an agent that does not wait by itself

    @staticmethod
    def _failed(each: Landing, state: Mapping[str, Any]) -> WorkFailed:
        error = str(state.get("error", "?"))[:40]
        path, detail = str(state.get("path", ""))[:200], str(state.get("detail", ""))[:300]
        what = f"data {each.entry.path}: {each.manifest.source}: {path}: " if path else f"data {each.entry.path}: "
        if error == "changed":
            return WorkFailed(
                f"{what}it has changed since apply ({detail}); `apply --replace` takes it as it is now", Reason.DATA
            )
        reason = {"gone": Reason.DATA, "denied": Reason.DATA, "refused": Reason.DATA, "disk-full": Reason.BAD_HOST}
        return WorkFailed(f"{what}{error}: {detail}", reason.get(error))


def _check(
    connection: ssh.Connection, each: Landing, tell: Callable[[Progress], None], mend: str = ""
) -> Mapping[str, Any]:
    """The machine's own look at every file, slice by slice, until all were looked at or something is wrong.

    `mend`: "way" removes there what no copy can write over (somebody else's file), "all" what is wrong in any way.
    """
    ask = {"path": each.dest, "manifest": each.listed, "single": each.manifest.single, "ours": each.ours, "mend": mend}
    while True:
        seen = connection.agent("landed", ask, CHECK_S)
        tell(Progress(int(seen.get("bytes", 0)), each.manifest.bytes, 0.0))
        if seen.get("faults") or seen.get("done") is True:
            return seen


def _named(home: Home, each: Landing, seen: Mapping[str, Any]) -> WorkFailed:
    """The error for files that are not as they must be: how many of each kind, and the first by name."""
    faults: Mapping[str, int] = seen["faults"]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    shown = "; ".join(f"{fault['path']} {fault['detail']}" for fault in seen["named"][:SHOWN])
    what = f"data {each.entry.path} did not land whole ({kinds}): {shown}"[:1500]
    if each.manifest.kind == "local":
        changed = datasets.changes(home, each.manifest)
        if changed:
            return WorkFailed(
                f"data {each.entry.path}: changed while it was copied: {datasets.names(changed)}; stop what writes it, "
                "then `apply --replace`",
                Reason.DATA,
            )
    return WorkFailed(what, Reason.DATA if set(faults) & LASTING else None)

"""Object stores that a spec names: found in the config, tried before anything is rented, and said in the plan.

Rules: a store that cannot be written to rents nothing. Left out, `checkpoint.mirror` is the store of the config where
there is exactly one; a folder (`mirror: .`) keeps checkpoints on this computer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.cli import exits
from orchestrator.cli.exits import CliError
from orchestrator.cli.specs import Loaded

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.config import Config
    from orchestrator.home import Home
    from orchestrator.objects.settings import Location

KIND_WORDS = {
    "sts": "machines get a part of its role, for their own prefix, renewed before it ends",
    "presigned": "machines get URLs that write numbered slots and nothing else, renewed before they end",
    "scoped": "WARNING: machines get the key of the config itself (scoped_key)",
}
STS_H, URL_H = 12, 7 * 24  # how long each lasts at most, in hours


@dataclass(frozen=True)
class StoreUse:
    """One place of a spec in a store: what it is for, what machines get, and what is worth a warning."""

    place: str
    url: str
    what: str
    kind: str
    warnings: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """For people."""
        return KIND_WORDS[self.kind] if self.what == "checkpoints" else "machines get a URL for each file"


def with_default_mirror(loaded: list[Loaded], config: Config) -> list[Loaded]:
    """The same specs, each with the config's store as its mirror where it saves checkpoints and names none."""
    from jobspecs.schema import Checkpoint

    stores = [name for name, each in config.stores.items() if each.url.startswith("s3://")]
    if len(stores) != 1:
        return loaded
    found = []
    for each in loaded:
        spec = each.spec
        own = spec.checkpoint or Checkpoint()
        if own.mirror is None and (spec.checkpoint is not None or spec.resumable):
            spec = spec.model_copy(update={"checkpoint": own.model_copy(update={"mirror": f"{stores[0]}:"})})
            origins = {"checkpoint": "config", **each.located.origins}
            each = replace(each, located=replace(each.located, spec=spec, origins=origins))
        found.append(each)
    return found


def places(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """(place, what for) of everything that the spec writes to a store."""
    from jobspecs.rules import is_remote

    if spec.checkpoint is not None and spec.checkpoint.mirror and is_remote(spec.checkpoint.mirror):
        yield spec.checkpoint.mirror, "checkpoints"
    for artifact in spec.artifacts if isinstance(spec.artifacts, tuple) else ():
        if artifact.to and is_remote(artifact.to):
            yield artifact.to, "results"


def check(home: Home, config: Config, spec: JobSpec) -> tuple[StoreUse, ...]:
    """Try every place that the spec writes to. CliError for one that is not known, not there or not writable."""
    from orchestrator.objects.errors import StoreDenied, StoreError, StoreRefused
    from orchestrator.objects.layout import filled
    from orchestrator.objects.places import Places
    from orchestrator.objects.probe import probe

    opened, tried = Places(home), set()
    found = []
    for place, what in dict.fromkeys(places(spec)):
        try:
            at = opened.of(filled(place, spec.name, "t0", "1"))
            if at.location.url not in tried:
                probe(at.store, at.location)
                tried.add(at.location.url)
        except StoreError as error:
            usage = isinstance(error, StoreRefused | StoreDenied) and not error.code
            raise CliError(
                f"{error.what}; nothing was rented", code=exits.USAGE if usage else exits.PROVIDER,
                where=f"{spec.name}: {place}", why=error.why, next=error.next or "gpujob doctor",
            ) from error  # fmt: skip
        found.append(use_of(place, what, at.location, spec, kept=_kept(home, at.location)))
    return tuple(found)


def use_of(place: str, what: str, location: Location, spec: JobSpec, kept: bool) -> StoreUse:
    """What is said of one place. `kept`: its key outlives this shell."""
    settings = location.settings
    kind = "sts" if settings.role_arn else "scoped" if settings.scoped_key else "presigned"
    warnings = []
    if what == "checkpoints":
        hours = {"sts": STS_H, "presigned": URL_H}.get(kind)
        if hours is not None and spec.ttl.seconds > hours * 3600:
            warnings.append(
                f"ttl {spec.ttl} is longer than the {hours}h that a machine's access lasts: asleep for longer, new "
                "checkpoints wait on the machine"
            )
        if kind == "scoped":
            warnings.append("whoever owns the machine can read and write all that this key can")
    if not kept:
        first = f"{settings.name.upper().replace('-', '_')}_" if settings.name else "AWS_"
        warnings.append(
            f"its key is in this shell's environment only: `gpujob secret set {first}ACCESS_KEY_ID` and "
            f"{first}SECRET_ACCESS_KEY keep it for a restarted controller"
        )
    return StoreUse(place, location.url, what, kind, tuple(warnings))


def _kept(home: Home, location: Location) -> bool:
    """Whether a controller that is started by another shell finds the key too."""
    from orchestrator.objects.errors import StoreDenied
    from orchestrator.objects.settings import find_key

    settings = location.settings
    if settings.profile:
        return True
    try:
        here = find_key(settings, home)
        return not here or find_key(settings, home, {}) == here
    except StoreDenied:
        return False


def lines(uses: Iterable[StoreUse]) -> Iterator[str]:
    """For a terminal."""
    for each in uses:
        yield f"store      {each.what} to {each.url}: {each.words}"
        for warning in each.warnings:
            yield f"  WARNING  {warning}"

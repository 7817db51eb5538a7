"""`plan`: what `apply` would do and cost, without doing it. Works with the controller dead and without a network.

Rules: provider calls are reads. A provider that does not answer is shown with its last known prices and their date.
`local` is asked only where a spec or `--provider` names it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits, specs
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import local_time, money, money_json, print_json, size, span, table, utc_z
from orchestrator.home import Home

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from orchestrator.config import Config
    from orchestrator.planning import Plan, Quote
    from orchestrator.snapshot import Snapshot
    from providers.base import Offer

RESULTS = "gpujob-results"
OFFERS_SHOWN = 12
LEFT_OUT_SHOWN = 8
CURES = (
    "an object store: `checkpoint.mirror` and `artifacts.to` (not served by this version yet)",
    "a controller on an always-on host: run gpujob there (`gpujob controller run`)",
)


@dataclass(frozen=True)
class Prepared:
    """One spec with everything that `apply` needs to ask for it."""

    loaded: specs.Loaded
    document: Mapping[str, Any]
    spec_hash: str
    snapshot: Snapshot | None
    results_dir: str
    plan: Plan

    @property
    def spec(self) -> JobSpec:
        """The spec itself."""
        return self.loaded.spec


def _add(parser: argparse.ArgumentParser) -> None:
    specs.add_files(parser)
    specs.add_changes(parser)
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the plans of all specs. Exit 4 when one of them has no acceptable offer."""
    from orchestrator.config import load_config

    home = Home.from_env()
    config = load_config(home)
    loaded = load_specs(args, config)
    prepared = [prepare(home, config, each) for each in loaded]
    show(prepared, args.output, home, config)
    return exits.OK if all(each.plan.chosen for each in prepared) else exits.NO_CAPACITY


def load_specs(args: argparse.Namespace, config: Config) -> list[specs.Loaded]:
    """All specs, valid and served; values of the environment go before flags."""
    files = specs.files_of(args)
    changes = specs.changes_of(args, len(files))
    changes["overrides"] = [*config.environment, *changes["overrides"]]
    loaded = specs.load_all(files, changes, config.defaults)
    specs.refuse_unserved(loaded)
    return loaded


def show(prepared: list[Prepared], output: str, home: Home, config: Config) -> None:
    """Plans on stdout."""
    if output == "json":
        documents = [as_json(each) for each in prepared]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    for position, each in enumerate(prepared):
        if position:
            print()
        print("\n".join(text(each, home, config)))


def prepare(home: Home, config: Config, loaded: specs.Loaded) -> Prepared:
    """Freeze the workdir, ask for offers, and work the plan out."""
    from jobspecs.schema import spec_hash, to_document
    from orchestrator.planning import make_plan

    spec = loaded.spec
    names = provider_names(spec, config)
    document = to_document(spec)
    return Prepared(
        loaded=loaded,
        document=document,
        spec_hash=spec_hash(spec),
        snapshot=freeze(home, spec, loaded.base_dir),
        results_dir=results_dir_of(spec, loaded.base_dir),
        plan=make_plan(
            spec,
            document,
            origins_of(loaded, config),
            tuple(quote(home, config, name, spec) for name in names),
            resting(home),
            names,
        ),
    )


def origins_of(loaded: specs.Loaded, config: Config) -> dict[str, str]:
    """Key -> flag, environment, spec or config."""
    from_environment = {key.split(".")[0] for key, _ in config.environment}
    words = {"--set": "flag", "config": "config"}
    found = {key: words.get(origin, "spec") for key, origin in loaded.located.origins.items()}
    return {
        key: "environment" if origin == "flag" and key in from_environment and key not in loaded.flags else origin
        for key, origin in found.items()
    }


def provider_names(spec: JobSpec, config: Config) -> tuple[str, ...]:
    """Who may be asked: the spec's providers, else every configured one, never `local`. Raises CliError for none."""
    names = spec.providers or tuple(name for name in config.providers if name != "local")
    if not names:
        raise CliError(
            "no provider is configured, and the spec names none",
            where=spec.name,
            next="`providers: [local]` or --provider local runs it on this computer; `gpujob providers` lists others",
        )
    return tuple(names)


def quote(home: Home, config: Config, name: str, spec: JobSpec) -> Quote:
    """What one provider offers now, else its last known prices; its trouble in words, never an exception of it."""
    from orchestrator.planning import Quote, ask_for
    from orchestrator.policy import ask_of
    from providers.errors import ProviderError
    from providers.registry import get_provider

    ask, now = ask_for(ask_of(spec), name), time.time()
    try:
        provider = get_provider(name, provider_config(home, config, name))
    except ProviderError as error:
        raise CliError(str(error), where="providers", next="gpujob providers", code=exits.USAGE) from error
    if ask is None:
        return Quote(name, (), now, "the spec asks for regions of other providers", caps=provider.caps)
    try:
        return Quote(name, tuple(provider.offers(ask)), now, caps=provider.caps)
    except ProviderError as error:
        stored = _stored(home, name, ask)
        if stored is None:
            return Quote(name, (), now, f"{error.kind}: {error}", caps=provider.caps)
        at, offers = stored
        return Quote(name, offers, at, f"{error.kind}: {error}", stored=True, caps=provider.caps)


def provider_config(home: Home, config: Config, name: str) -> Any:
    """What the registry hands to an adapter; no verb creates machines, so the deployment is not needed here."""
    from jobspecs.gpu_table import GPU_CLASSES
    from providers.base import GpuRow, ProviderConfig

    gpus = tuple(GpuRow(gpu.name, gpu.vram_gb) for gpu in GPU_CLASSES)
    return ProviderConfig("plan", home.state, gpus, config.providers.get(name, {}))


def _stored(home: Home, provider: str, ask: Any) -> tuple[float, tuple[Offer, ...]] | None:
    if not home.database.exists():
        return None
    from orchestrator.cli.reading import reader
    from orchestrator.store.rows import plain, text

    with reader(home) as store:
        return store.prices(provider, text(plain(ask)))


def resting(home: Home) -> dict[str, str]:
    """What refused or was reclaimed lately, by the books."""
    if not home.database.exists():
        return {}
    from orchestrator.cli.reading import reader

    with reader(home) as store:
        return store.resting(time.time())


def results_dir_of(spec: JobSpec, base_dir: Path) -> str:
    """Where results come home: `<to>/NAME`, by default below the spec's folder; empty for `artifacts: none`."""
    if spec.artifacts == "none":
        return ""
    places = [each.to for each in spec.artifacts or () if each.to]
    folder = Path(places[0].replace("{job}", spec.name)) if places else Path(RESULTS)
    return str((base_dir / folder.expanduser() / spec.name).resolve())


def freeze(home: Home, spec: JobSpec, base_dir: Path) -> Snapshot | None:
    """The snapshot of the workdir; the folders of results are never part of it."""
    if not isinstance(spec.workdir, str):
        return None
    from orchestrator.snapshot import take

    artifacts = spec.artifacts if isinstance(spec.artifacts, tuple) else ()
    exclude = [base_dir / RESULTS, *(base_dir / Path(each.to).expanduser() for each in artifacts if each.to)]
    folder = base_dir / Path(spec.workdir).expanduser()
    outside = [path for path in exclude if path.resolve() != folder.resolve()]
    return take(folder, home, exclude=outside, allow_large="large-workdir" in spec.allow)


def text(prepared: Prepared, home: Home, config: Config) -> Iterator[str]:
    """The lines for a terminal."""
    from jobspecs.names import cloud_name

    plan, spec = prepared.plan, prepared.spec
    mapped = cloud_name(spec.name)
    yield spec.name + (f"  (called {mapped} at providers)" if mapped != spec.name else "")
    yield ""
    rows = [(each.key, _short(each.value), each.origin) for each in plan.values]
    yield table(("KEY", "VALUE", "FROM"), rows, shrink=("VALUE",), state="")
    yield ""
    yield from _offers(plan)
    yield ""
    yield from _money(plan, prepared)
    yield ""
    yield "ENDS THE MACHINE   stops the bill without this computer?"
    for timer in plan.timers:
        yield f"  {timer.name:<15}  {'yes' if timer.binds else 'no':<3}  {timer.why}"
    if plan.needs_awake:
        yield ""
        yield from _awake(plan, spec)
    yield ""
    yield f"results    {prepared.results_dir or 'none are brought home (artifacts: none)'}"
    yield from _snapshot(prepared)


def _short(value: Any) -> str:
    if isinstance(value, str):
        lines = value.strip().splitlines()
        return lines[0] + (f"  ... ({len(lines)} lines)" if len(lines) > 1 else "") if lines else "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_short(each) for each in value) or "-"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {_short(each)}" for key, each in value.items()) or "-"
    return "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _offers(plan: Plan) -> Iterator[str]:
    from orchestrator.planning import why_dearer

    for each in plan.quotes:
        when = f"prices of {local_time(each.at)}" if each.stored else "asked now"
        trouble = f"; {each.trouble}" if each.trouble else ""
        yield f"{each.provider}: {len(each.offers)} offers, {when}{trouble}"
    rows = why_dearer(plan, (offer for each in plan.quotes for offer in each.offers))
    if not rows:
        yield "no offers satisfy the spec"
        return
    shown = rows[:OFFERS_SHOWN]
    if plan.chosen and all(offer is not plan.chosen for offer, _ in shown):
        shown = [*shown[:-1], next(row for row in rows if row[0] is plan.chosen)]
    play = {each.provider for each in plan.quotes if each.caps and each.caps.play}
    yield table(
        ("PROVIDER", "REGION", "GPU", "SPOT", "PRICE/H", "WHY"),
        [(*_offer_cells(offer, offer.provider in play), why) for offer, why in shown],
        shrink=("WHY",), right=("PRICE/H",), state="",
    )  # fmt: skip
    if len(rows) > len(shown):
        yield f"... and {len(rows) - len(shown)} more"


def _offer_cells(offer: Offer, play: bool) -> tuple[str, ...]:
    count = f":{offer.gpu_count}" if offer.gpu_count > 1 else ""
    gpu = f"{offer.gpu}{count}{' stand-in' if offer.stand_in else ''}" if offer.gpu else f"CPU x {offer.cpus}"
    price = money(offer.hourly, offer.currency, play)
    return (offer.provider, offer.region, gpu, "spot" if offer.spot else "no", price)


def _money(plan: Plan, prepared: Prepared) -> Iterator[str]:
    currency, play, spec = plan.currency, plan.play, prepared.spec
    if plan.price_cap is not None:
        why = "max_price" if plan.price_cap_given else "1.5 x the offer shown"
        yield f"price cap  {money(plan.price_cap, currency, play)}/h ({why}); a dearer offer waits"
    if plan.expected_cost is not None:
        yield f"expected   {money(plan.expected_cost, currency, play)} for {spec.expected}"
    if plan.worst_case is not None:
        how = f"the ttl of {spec.ttl} at the price cap" if plan.worst_case_by == "ttl" else "the budget"
        yield f"worst case {money(plan.worst_case, currency, play)}: {how}, a late release included"
    if plan.reserve is not None and plan.machine_end_s is not None:
        amount, end = money(plan.reserve, currency, play), span(plan.machine_end_s)
        yield f"reserve    {amount} for the first machine, which ends {end} after its start"
    if not spec.resumable:
        yield "resume     no: a lost machine means a start from zero (name $GPUJOB_RESUME_FROM in run)"


def _awake(plan: Plan, spec: JobSpec) -> Iterator[str]:
    hours = spec.expected or spec.ttl
    at_stake = plan.expected_cost if plan.expected_cost is not None else plan.worst_case
    amount = f", {money(at_stake, plan.currency, plan.play)}" if at_stake is not None else ""
    most = "" if spec.expected else " at most"
    yield f"NEEDS THIS COMPUTER AWAKE ({hours}{most}{amount}); the run itself goes on without it"
    for need in plan.needs_awake:
        yield f"  {need.what:<22}  {need.why}"
    for cure in CURES:
        yield f"  cure: {cure}"


def _snapshot(prepared: Prepared) -> Iterator[str]:
    shot = prepared.snapshot
    if shot is None:
        yield "snapshot   none (no workdir)"
        return
    files = sum(entry.kind == "file" for entry in shot.files)
    commit = f", commit {shot.commit[:12]}{' with changes' if shot.dirty else ''}" if shot.commit else ""
    yield f"snapshot   {files} files, {size(shot.bytes)}, {shot.hash[:12]}{commit}"
    for left in shot.left_out[:LEFT_OUT_SHOWN]:
        more = "more than " if left.more else ""
        yield f"  not sent  {left.path}  ({left.reason}, {more}{size(left.bytes)})"
    if len(shot.left_out) > LEFT_OUT_SHOWN:
        yield f"  not sent  ... and {len(shot.left_out) - LEFT_OUT_SHOWN} more"


def offer_json(offer: Offer, play: bool) -> dict[str, Any]:
    """One offer in JSON."""
    return {
        "provider": offer.provider,
        "account": offer.account,
        "region": offer.region,
        "gpu": offer.gpu or None,
        "gpu_count": offer.gpu_count,
        "stand_in": offer.stand_in,
        "cpus": offer.cpus,
        "memory": offer.memory,
        "disk": offer.disk,
        "spot": offer.spot,
        "hourly": money_json(offer.hourly, offer.currency, play),
    }


def as_json(prepared: Prepared) -> dict[str, Any]:
    """One plan as documented in the reference of the JSON output."""
    plan, shot = prepared.plan, prepared.snapshot
    return {
        "name": plan.name,
        "values": [{"key": each.key, "value": each.value, "from": each.origin} for each in plan.values],
        "providers": [
            {"provider": each.provider, "offers": len(each.offers), "at": utc_z(each.at), "stored": each.stored,
             "trouble": each.trouble or None}
            for each in plan.quotes
        ],
        "chosen": offer_json(plan.chosen, plan.play) if plan.chosen else None,
        "offers": [offer_json(offer, plan.play) for offer in plan.ranked],
        "left_out": [{**offer_json(out.offer, plan.play), "why": out.why} for out in plan.left_out],
        "price_cap": money_json(plan.price_cap, plan.currency, plan.play),
        "expected_cost": money_json(plan.expected_cost, plan.currency, plan.play),
        "worst_case": money_json(plan.worst_case, plan.currency, plan.play),
        "worst_case_by": plan.worst_case_by,
        "reserve": money_json(plan.reserve, plan.currency, plan.play),
        "machine_end_s": plan.machine_end_s,
        "timers": [{"timer": each.name, "binds": each.binds, "why": each.why} for each in plan.timers],
        "needs_awake": [{"what": each.what, "why": each.why} for each in plan.needs_awake],
        "resumable": prepared.spec.resumable,
        "results": prepared.results_dir or None,
        "spec_hash": prepared.spec_hash,
        "snapshot": {
            "hash": shot.hash, "files": sum(entry.kind == "file" for entry in shot.files), "bytes": shot.bytes,
            "commit": shot.commit or None, "dirty": shot.dirty,
            "left_out": [{"path": each.path, "reason": each.reason, "bytes": each.bytes} for each in shot.left_out],
        } if shot else None,
    }  # fmt: skip


COMMANDS = {"plan": Command(_add, run)}

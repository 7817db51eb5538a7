"""`plan`: what `apply` would do and cost, without doing it. Works with the controller dead and without a network.

Rules: provider calls are reads. A provider that does not answer is shown with its last known prices and their date.
`local` is asked only where a spec or `--provider` names it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits, specs, stage
from orchestrator.cli.balances import shortfall
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import print_json, put
from orchestrator.cli.quotes import configured, quotes
from orchestrator.cli.stores import StoreUse, check, with_default_mirror
from orchestrator.home import Home

if TYPE_CHECKING:
    from jobspecs.schema import GitSource, JobSpec
    from jobspecs.sweep import Wanted
    from orchestrator.config import Config
    from orchestrator.datasets import Manifest
    from orchestrator.history import History
    from orchestrator.planning import Plan
    from orchestrator.snapshot import Snapshot
    from providers.base import Ask, Offer

RESULTS = "gpujob-results"


@dataclass(frozen=True)
class Prepared:
    """One spec with everything that `apply` needs to ask for it."""

    loaded: specs.Loaded
    document: Mapping[str, Any]
    spec_hash: str
    snapshot: Snapshot | None
    results_dir: str
    plan: Plan
    tasks: tuple[Wanted, ...] = ()  # of a sweep, a batch, replicas
    nothing: tuple[tuple[str, int], ...] = ()  # where nobody offers anything: key of the spec -> offers that it removes
    data: Mapping[str, Manifest] = field(default_factory=dict)  # path on the machine -> what lands there
    stores: tuple[StoreUse, ...] = ()
    short: str = ""  # that the chosen provider's account holds less than the reserve
    bigger: Offer | None = None  # where every card asked for is too small: the cheapest machine that holds the model

    @property
    def spec(self) -> JobSpec:
        """The spec itself."""
        return self.loaded.spec

    @property
    def spec_file(self) -> str:
        """The spec file's path within its own workdir; empty where it lies elsewhere or came from stdin."""
        workdir, file = self.spec.workdir, Path(self.loaded.located.filename)
        if not isinstance(workdir, str) or not file.is_file():
            return ""
        folder = (self.loaded.base_dir / Path(workdir).expanduser()).resolve()
        full = file.resolve()
        return full.relative_to(folder).as_posix() if full.is_relative_to(folder) else ""


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
    show(prepared, args.output)
    return exits.OK if all(each.plan.chosen for each in prepared) else exits.NO_CAPACITY


def load_specs(args: argparse.Namespace, config: Config) -> list[specs.Loaded]:
    """All specs, valid and served; values of the environment go before flags."""
    files = specs.files_of(args)
    changes = specs.changes_of(args, len(files))
    changes["overrides"] = [*config.environment, *changes["overrides"]]
    loaded = specs.load_all(files, changes, config.defaults)
    specs.refuse_unknown_targets(loaded, config.notify)
    return with_default_mirror(loaded, config)


def show(prepared: list[Prepared], output: str) -> None:
    """Plans on stdout."""
    from orchestrator.cli.plan_json import plan_json
    from orchestrator.cli.plan_text import plan_text

    if output == "json":
        documents = [plan_json(each) for each in prepared]
        print_json(documents[0] if len(documents) == 1 else documents)
        return
    for position, each in enumerate(prepared):
        if position:
            put()
        put("\n".join(plan_text(each)))


def refuse_homeless(loaded: specs.Loaded, history: History) -> None:
    """CliError for a job that only takes spot and whose checkpoints this computer could not save in time."""
    from orchestrator.policy import homeless
    from orchestrator.space import gb

    size = homeless(loaded.spec, history) if loaded.spec.spot is True else 0
    if size:
        raise CliError(
            f"spot needs an object store for checkpoints of {gb(size)}", code=exits.USAGE,
            where=f"{loaded.spec.name}: checkpoint.mirror",
            why="a reclaim leaves minutes, in which so much does not come to this computer",
            next="name a store in `checkpoint.mirror`; `mirror: .` keeps them on this computer all the same",
        )  # fmt: skip


def prepare(home: Home, config: Config, loaded: specs.Loaded) -> Prepared:
    """Freeze the workdir, ask for offers, and work the plan out."""
    from jobspecs.schema import spec_hash, to_document
    from orchestrator.clock import SystemClock
    from orchestrator.datasets import summaries
    from orchestrator.planning import Exchange, ask_for, make_plan
    from orchestrator.policy import ask_of
    from orchestrator.sources.listing import manifests_of

    spec = loaded.spec
    data = manifests_of(home, spec, loaded.base_dir) if spec.data else {}
    stores = check(home, config, spec)
    names, ask = provider_names(spec, config), ask_of(spec, sum(each.bytes for each in data.values()))
    document = to_document(spec)
    tasks = tasks_for(loaded)
    rests, history = known(home, spec.name)
    refuse_homeless(loaded, history)
    plan = make_plan(
        spec,
        document,
        origins_of(loaded, config),
        quotes(home, config, {name: ask_for(ask, name) for name in names}),
        rests,
        names,
        history,
        Exchange(config.currency, config.rates_to),
        SystemClock().utc(),
        summaries(data),
        len(tasks) or trials_of(spec),
    )
    return Prepared(
        tasks=tasks,
        loaded=loaded,
        document=document,
        spec_hash=spec_hash(spec),
        snapshot=freeze(home, spec, loaded.base_dir),
        results_dir=results_dir_of(spec, loaded.base_dir),
        plan=plan,
        data=data,
        nothing=_nothing(home, config, plan, ask),
        stores=stores,
        bigger=_bigger(home, config, plan),
        short=shortfall(home, config, plan),
    )


def tasks_for(loaded: specs.Loaded) -> tuple[Wanted, ...]:
    """The legs, slices or replicas that the spec asks for, with the files that it names as they are now. Raises
    SpecErrors, with the place of the key.
    """
    from jobspecs.problems import Problem, Refusal, SpecErrors
    from jobspecs.sweep import legs, replicas, sampled, slices
    from orchestrator.matching import below, items_of

    spec, base_dir = loaded.spec, loaded.base_dir
    root = base_dir / Path(spec.workdir).expanduser() if isinstance(spec.workdir, str) else None
    try:
        if spec.sweep is not None:
            if sampled(spec.sweep) and spec.sweep.search.method == "tpe":
                _require_tpe(spec)
            return legs(spec.sweep, lambda pattern: below(root, pattern))
        if spec.batch is not None:
            sources = {each.path: base_dir / Path(each.source).expanduser() for each in spec.data}
            return slices(items_of(root, sources, spec.batch.items), spec.batch.slice)
    except Refusal as refusal:
        key = refusal.key or ("sweep" if spec.sweep is not None else "batch.items")
        raise SpecErrors([loaded.located.place(Problem("", 0, 0, key, refusal.reason, refusal.hint))]) from None
    return replicas(spec.replicas) if spec.replicas is not None else ()


def trials_of(spec: JobSpec) -> int:
    """Legs that a search draws."""
    return (spec.sweep.search.trials or 0) if spec.sweep is not None else 0


def _require_tpe(spec: JobSpec) -> None:
    from orchestrator.tpe import NoOptuna, require

    try:
        require()
    except NoOptuna as error:
        raise CliError(str(error), where=f"{spec.name}: sweep.search") from None


def _nothing(home: Home, config: Config, plan: Plan, ask: Ask) -> tuple[tuple[str, int], ...]:
    """When nobody offers anything: which keys of the spec leave nothing of what there is of these GPUs."""
    from orchestrator.comparison import funnel
    from providers.base import Ask

    if any(each.offers for each in plan.quotes):
        return ()
    wide = quotes(home, config, dict.fromkeys(plan.policy.providers, Ask(gpus=ask.gpus)))
    return tuple(funnel(ask, (offer for each in wide for offer in each.offers)))


def _bigger(home: Home, config: Config, plan: Plan) -> Offer | None:
    """When every card asked for is too small: the cheapest machine with which the model fits, for what it costs."""
    from jobspecs.gpus import GPU_CLASSES
    from orchestrator.placement import rank
    from providers.base import Ask, GpuWish

    if plan.memory is None or plan.ranked or not any(out.by == "model" for out in plan.left_out):
        return None
    fitting = [(gpu, count) for gpu in GPU_CLASSES if (count := plan.memory.cards(gpu))]
    ask = Ask(gpus=tuple(GpuWish(gpu.name, gpu.vram_gb, count) for gpu, count in fitting))
    found = quotes(home, config, dict.fromkeys(plan.policy.providers, ask))
    policy = replace(plan.policy, price_cap=None)
    return next(iter(rank((offer for each in found for offer in each.offers), policy, {}).ranked), None)


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
    names = spec.providers or configured(config)
    if not names:
        raise CliError(
            "no provider is configured, and the spec names none",
            where=spec.name,
            next="`providers: [local]` or --provider local runs it on this computer; `gpujob providers` lists others",
        )
    return tuple(names)


def known(home: Home, name: str) -> tuple[dict[str, str], History]:
    """What refused or was reclaimed lately, and what earlier runs of this name took, by the books."""
    from orchestrator.history import History, history_of

    if not home.database.exists():
        return {}, History()
    from orchestrator.cli.reading import reader

    now = time.time()
    with reader(home) as store:
        return store.resting(now), history_of(store, name, now)


def results_dir_of(spec: JobSpec, base_dir: Path) -> str:
    """Where results come home: `<to>/NAME`, by default below the spec's folder; empty for `artifacts: none`."""
    from jobspecs.rules import is_remote
    from orchestrator.objects.layout import filled

    if spec.artifacts == "none":
        return ""
    places = [each.to for each in spec.artifacts or () if each.to]
    if places and is_remote(places[0]):
        return f"{filled(places[0], spec.name, 't0', '1').rstrip('/')}/{spec.name}"
    folder = Path(places[0].replace("{job}", spec.name)) if places else Path(RESULTS)
    return str((base_dir / folder.expanduser() / spec.name).resolve())


def freeze(home: Home, spec: JobSpec, base_dir: Path) -> Snapshot | None:
    """The snapshot of the workdir; the folders of results are never part of it."""
    if spec.workdir is None:
        return None
    from orchestrator.snapshot import take

    large = "large-workdir" in spec.allow
    if not isinstance(spec.workdir, str):
        return _freeze_commit(home, spec, spec.workdir, base_dir)
    folder = base_dir / Path(spec.workdir).expanduser()
    exclude = result_folders(spec, base_dir, folder)
    return take(folder, home, exclude=exclude, allow_large=large, seen=stage.seen(folder))


def result_folders(spec: JobSpec, base_dir: Path, folder: Path) -> list[Path]:
    """Folders that results come to, which a snapshot of `folder` leaves out."""
    from jobspecs.rules import is_remote

    artifacts = spec.artifacts if isinstance(spec.artifacts, tuple) else ()
    places = [
        base_dir / RESULTS,
        *(base_dir / Path(each.to).expanduser() for each in artifacts if each.to and not is_remote(each.to)),
    ]
    return [path for path in places if path.resolve() != folder.resolve()]


def _freeze_commit(home: Home, spec: JobSpec, source: GitSource, base_dir: Path) -> Snapshot:
    """The snapshot of a repository at one commit, and what is not in it."""
    from jobspecs.files import check_commands
    from orchestrator.snapshot import LeftOut, take
    from orchestrator.sources.git import checkout

    with checkout(home, source.git, source.ref, base_dir, allow_dirty="dirty" in spec.allow) as found:
        problems = check_commands(spec, found.folder)
        if problems:
            first = problems[0]
            raise CliError(
                f"{first.key}: {first.reason} (at {found.commit[:12]}, {found.origin})",
                where=spec.name, next=first.hint,
            )  # fmt: skip
        shot = take(found.folder, home, allow_large="large-workdir" in spec.allow)
    left = [each for each in shot.left_out if each.path != ".git"]  # the checkout's own mark
    left += [LeftOut(path, reason, 0) for path, reason in found.notes]
    return replace(shot, left_out=tuple(left), commit=found.commit, dirty=False, origin=found.origin)


COMMANDS = {"plan": Command(_add, run)}

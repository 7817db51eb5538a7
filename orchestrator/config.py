"""The user's own settings: `config.yaml` in the config folder, and the variables that win over it.

    defaults: {ttl: 8h}                        any key of a spec
    providers: {runpod: {regions: [EU]}}       settings of a provider, read by its adapter; never a key. `gpujob login`
                                               makes one configured without a line here
    hosts: {lab: {...}}                        machines of your own, written by `gpujob host add`
    stores: {lab: {url: s3://bucket/prefix}}   object stores, used as `lab:prefix`; their keys see `objects.settings`
    limits: {per_job: 50 USD, per_month: 300 USD, machines: 8}      `none` switches one off
    notify: {me: {url_env: MY_HOOK, events: [outcome, alarm]}}     targets; a spec names them. Also {url: ...}, or
                                               the address alone; all events unless some are named
    currency: USD                              of limits and reports
    rates: {CNY: {rate: 0.139, as_of: 2026-10-01}}                  1 CNY is 0.139 USD
    owner: alice                               carried by every machine

Precedence: flag > environment > spec > config > built-in; every effective value knows its origin (B022, B152). A
missing file is fine. Every problem of the file is reported at once, with its place. Nothing here imports pydantic
unless `defaults` has keys to compare with the spec's.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobspecs.problems import Problem, Refusal, SpecErrors, looks_like_secret_value
from jobspecs.units import Money, parse_int, parse_money, parse_number, parse_size
from orchestrator.credentials import logged_in
from orchestrator.home import Home
from orchestrator.objects.settings import KEYS as STORE_KEYS
from orchestrator.objects.settings import StoreSettings
from orchestrator.targets import TOPICS, Target

if TYPE_CHECKING:
    from jobspecs import document as doc

BUILT_IN, CONFIG, SPEC, ENVIRONMENT, FLAG = "built-in", "config", "spec", "environment", "flag"

#: Variables that set a key of every spec, as `--set` would; a flag wins over them.
SPEC_VARIABLES: Mapping[str, str] = {
    "GPUJOB_TTL": "ttl",
    "GPUJOB_BUDGET": "budget",
    "GPUJOB_MAX_PRICE": "max_price",
    "GPUJOB_SPOT": "spot",
    "GPUJOB_PROVIDERS": "providers",  # several: a,b
    "GPUJOB_REGIONS": "regions",  # several: a,b
}
#: Variables that set a key of the config.
CONFIG_VARIABLES: Mapping[str, str] = {"GPUJOB_OWNER": "owner", "GPUJOB_CURRENCY": "currency"}

_KEYS = ("defaults", "providers", "hosts", "stores", "limits", "notify", "currency", "rates", "owner")
_LIMITS = ("per_job", "per_month", "machines")
# Several nights on one large GPU; a month of a hobby; what one person still watches.
_PER_JOB, _PER_MONTH, _MACHINES = Money(Decimal("50.00")), Money(Decimal("300.00")), 8
_OWNER = re.compile(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?")  # part of a tag at every provider

_HEAD = """\
# gpujob's settings. All keys: {keys}.
# Precedence: flag > environment > spec > this file > built-in; `gpujob plan` shows where each value came from.
"""
_LIMITS_TEXT = """\
# `apply` stops at these, even with -y, unless --max-cost covers the worst case; `none` switches one off.
limits:
  per_job: {per_job}
  per_month: {per_month}
  machines: {machines}
"""


@dataclass(frozen=True)
class Limits:
    """What `apply` may commit to without being told; None is no limit."""

    per_job: Money | None = _PER_JOB
    per_month: Money | None = _PER_MONTH
    machines: int | None = _MACHINES


@dataclass(frozen=True)
class Rate:
    """What one unit of a currency is worth in the config's `currency`, and on which day that was so."""

    rate: Decimal
    as_of: str  # YYYY-MM-DD


@dataclass(frozen=True)
class Effective:
    """A value that holds, and where it came from: flag, environment, spec, config or built-in."""

    value: Any
    origin: str


@dataclass(frozen=True)
class Config:
    """The settings that hold. `defaults` and the blocks of providers and hosts are as typed (text)."""

    path: Path
    defaults: Mapping[str, Any] = field(default_factory=dict)
    providers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    hosts: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    stores: Mapping[str, StoreSettings] = field(default_factory=dict)
    limits: Limits = Limits()
    notify: Mapping[str, Target] = field(default_factory=dict)
    currency: str = "USD"
    rates: Mapping[str, Rate] = field(default_factory=dict)
    owner: str = ""
    environment: tuple[tuple[str, str], ...] = ()  # (spec key, text) of SPEC_VARIABLES, to go before `--set`
    origins: Mapping[str, str] = field(default_factory=dict)  # key of the config -> config or environment

    def rates_to(self, currency: str) -> Mapping[str, Decimal]:
        """What one unit of every known other currency is worth in `currency`; empty when that one has no rate."""
        worth = {self.currency: Decimal(1)} | {name: rate.rate for name, rate in self.rates.items()}
        if currency not in worth:
            return {}
        return {name: each / worth[currency] for name, each in worth.items() if name != currency}


def resolve(layers: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, Effective]:
    """Of (origin, values) pairs, strongest first, the value that holds for each key; None is "not set here"."""
    found: dict[str, Effective] = {}
    for origin, values in layers:
        for key, value in values.items():
            if value is not None and key not in found:
                found[key] = Effective(value, origin)
    return found


def load_config(home: Home, env: Mapping[str, str] | None = None) -> Config:
    """The settings of the file and the environment. Raises SpecErrors with every problem of both."""
    env = os.environ if env is None else env
    reader = _Reader(home.config_file)
    values = reader.read()
    origins = dict.fromkeys(values, CONFIG)
    for variable, key in CONFIG_VARIABLES.items():
        if env.get(variable):
            check = {"owner": reader.owner, "currency": reader.currency}[key]
            values[key], origins[key] = check(env[variable], variable), ENVIRONMENT
    if reader.problems:
        raise SpecErrors(reader.problems)
    for name in logged_in(home):
        values["providers"] = {name: {}, **values.get("providers", {})}
    if values.get("hosts"):
        blocks = values.get("providers", {})
        values["providers"] = {**blocks, "ssh": {**blocks.get("ssh", {}), "hosts": values["hosts"]}}
    spec = tuple((key, _listed(key, env[name])) for name, key in SPEC_VARIABLES.items() if env.get(name))
    return Config(path=home.config_file, environment=spec, origins=origins, **values)


def _listed(key: str, text: str) -> str:
    """`a,b` as the YAML list that it means."""
    return f"[{text}]" if key in ("providers", "regions") and "," in text and not text.startswith("[") else text


def check_file(path: Path) -> None:
    """Raises SpecErrors when the file at `path` would be no config."""
    _Reader(path).check()


def write_defaults(home: Home) -> bool:
    """Put the limits into the file, so that the user sees them; True when they were not there. Called at first use."""
    path = home.make().config_file
    old = path.read_text(encoding="utf-8") if path.exists() else ""
    if "limits" in load_config(home, {}).origins:
        return False
    limits = Limits()
    said = _LIMITS_TEXT.format(per_job=limits.per_job, per_month=limits.per_month, machines=limits.machines)
    head = _HEAD.format(keys=", ".join(_KEYS)) if not old else old.rstrip("\n") + "\n"
    half = path.with_name(f"{path.name}.{os.getpid()}")
    handle = os.open(half, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    with open(handle, "w", encoding="utf-8") as out:
        out.write(f"{head}\n{said}")
        out.flush()
        os.fsync(out.fileno())
    try:
        _Reader(half).check()  # a file in one line of braces takes no further block: then it stays as it is
    except SpecErrors:
        half.unlink()
        return False
    os.replace(half, path)
    return True


class _Reader:
    """The file as values, with every problem at its place."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.problems: list[Problem] = []

    def check(self) -> None:
        """Raise SpecErrors when the file has a problem."""
        self.read()
        if self.problems:
            raise SpecErrors(self.problems)

    def read(self) -> dict[str, Any]:
        """Fields of `Config` that the file sets; problems are kept in `problems`, but bad YAML raises."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SpecErrors([Problem(str(self.path), 0, 0, "", f"cannot be read: {error.strerror}")]) from None
        if all(not line.strip() or line.lstrip().startswith(b"#") for line in data.splitlines()):
            return {}
        from jobspecs import document as doc  # PyYAML: not for a user without a config

        values: dict[str, Any] = {}
        root = doc.read_document(data, str(self.path), self.problems)
        for key, (at, node) in self._known(root, _KEYS, "").items():
            if doc.plain(node) is None:
                continue  # `limits:` with nothing below is as good as left out
            if key in ("currency", "owner"):
                text = self._text(node, key)
                if text:
                    values[key] = (self.owner if key == "owner" else self.currency)(text, key, node)
            elif not isinstance(node, doc.Mapping):
                self._say(at, key, "must have `name: value` lines below it")
            else:
                values[key] = getattr(self, f"_{key}")(node)
        return values

    def _say(self, node: doc.Node | None, key: str, reason: str, hint: str = "") -> None:
        file, line, column = (node.file, node.line, node.column) if node else (key, 0, 0)
        self.problems.append(Problem(file, line, column, key if node else "", reason, hint))

    def _known(self, node: doc.Mapping, keys: Sequence[str], below: str) -> dict[str, tuple[doc.Scalar, doc.Node]]:
        """The entries whose key is one of `keys`; the others are problems that name the nearest key."""
        for key, (at, _) in node.entries.items():
            if key not in keys:
                import difflib

                near = difflib.get_close_matches(key, keys, n=1)
                hint = f"did you mean {near[0]}?" if near else f"the keys here are {', '.join(keys)}"
                self._say(at, f"{below}{key}", "is no key of the config", hint)
        return {key: entry for key, entry in node.entries.items() if key in keys}

    def _text(self, node: doc.Node, key: str) -> str:
        text = getattr(node, "text", None)
        if text is None:
            self._say(node, key, "must be one word or number")
        return text or ""

    def currency(self, text: str, key: str, node: doc.Node | None = None) -> str:
        if not re.fullmatch(r"[A-Z]{3}", text):
            self._say(node, key, f"{text!r} is not a currency", "write its ISO code: USD, EUR, CNY")
        return text

    def owner(self, text: str, key: str, node: doc.Node | None = None) -> str:
        if not _OWNER.fullmatch(text):
            hint = "use up to 32 of a-z, 0-9 and -: it becomes part of the machines' tags"
            self._say(node, key, f"{text!r} is not an owner's name", hint)
        return text

    def _defaults(self, node: doc.Mapping) -> dict[str, Any]:
        from jobspecs import document as doc
        from jobspecs.schema import JobSpec

        keys = [info.alias or name for name, info in JobSpec.model_fields.items()]
        return {key: doc.plain(value) for key, (_, value) in self._known(node, keys, "defaults.").items()}

    def _blocks(self, node: doc.Mapping, below: str) -> dict[str, Mapping[str, Any]]:
        """name -> settings, which only the adapter can judge; a credential among them is refused."""
        from jobspecs import document as doc

        found: dict[str, Mapping[str, Any]] = {}
        for name, (at, block) in node.entries.items():
            plain = doc.plain(block)
            if plain is not None and not isinstance(plain, dict):
                self._say(at, f"{below}.{name}", "must have `name: value` lines below it")
                continue
            for key, value in (plain or {}).items():
                if isinstance(value, str) and looks_like_secret_value(value):
                    hint = f"`gpujob login {name}` keeps it in the keyring or in a private file"
                    self._say(at, f"{below}.{name}.{key}", "looks like a secret, which does not belong here", hint)
            found[name] = plain or {}
        return found

    def _providers(self, node: doc.Mapping) -> dict[str, Mapping[str, Any]]:
        return self._blocks(node, "providers")

    def _hosts(self, node: doc.Mapping) -> dict[str, Mapping[str, Any]]:
        return self._blocks(node, "hosts")

    def _texts(self, node: doc.Mapping, below: str) -> dict[str, str]:
        return {name: self._text(value, f"{below}.{name}") for name, (_, value) in node.entries.items()}

    def _stores(self, node: doc.Mapping) -> dict[str, StoreSettings]:
        """A URL alone, or a block with the keys of `StoreSettings`."""
        from jobspecs import document as doc

        found: dict[str, StoreSettings] = {}
        for name, (at, value) in node.entries.items():
            below = f"stores.{name}"
            if isinstance(value, doc.Mapping):
                fields = self._known(value, STORE_KEYS, f"{below}.")
                texts = {key: self._text(entry, f"{below}.{key}") for key, (_, entry) in fields.items()}
            else:
                texts = {"url": getattr(value, "text", None) or ""}
            if "://" not in texts.get("url", ""):
                self._say(value, below, "must be a URI", "write it like s3://bucket/prefix")
            if texts.get("scoped_key", "false") not in ("true", "false"):
                self._say(value, f"{below}.scoped_key", "is true or false")
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*", name):
                self._say(at, below, "is no name of a store", "use letters, digits, - and _, a letter first")
            if texts.get("bandwidth"):
                try:
                    parse_size(texts["bandwidth"])
                except Refusal as refusal:
                    self._say(value, f"{below}.bandwidth", refusal.reason, refusal.hint)
            scoped = texts.pop("scoped_key", "false") == "true"
            found[name] = StoreSettings(name, scoped_key=scoped, **{"url": "", **texts})
        return found

    def _notify(self, node: doc.Mapping) -> dict[str, Target]:
        from jobspecs import document as doc

        found: dict[str, Target] = {}
        for name, (at, value) in node.entries.items():
            if not isinstance(value, doc.Mapping):
                found[name] = Target(url=self._text(value, f"notify.{name}"))
                continue
            below = f"notify.{name}."
            known = self._known(value, ("url", "url_env", "events"), below)
            texts = {key: self._text(known[key][1], below + key) for key in ("url", "url_env") if key in known}
            if len(texts) != 1:
                self._say(at, f"notify.{name}", "needs either url or url_env", "write {url_env: NAME_OF_A_VARIABLE}")
            topics = self._topics(known["events"][1], below) if "events" in known else frozenset(TOPICS)
            found[name] = Target(topics=topics, **texts)
        return found

    def _topics(self, node: doc.Node, below: str) -> frozenset[str]:
        from jobspecs import document as doc

        plain = doc.plain(node)
        named = [plain] if isinstance(plain, str) else plain if isinstance(plain, list) else []
        unknown = [str(each) for each in named if each not in TOPICS]
        if unknown or not named:
            self._say(
                node, f"{below}events", f"{', '.join(unknown) or plain!r} is no event", f"one of {', '.join(TOPICS)}"
            )
        return frozenset(str(each) for each in named)

    def _limits(self, node: doc.Mapping) -> Limits:
        set_: dict[str, Any] = {}
        for key, (_, value) in self._known(node, _LIMITS, "limits.").items():
            text = self._text(value, f"limits.{key}")
            if text == "none":
                set_[key] = None
                continue
            try:
                set_[key] = parse_int(text, 0) if key == "machines" else parse_money(text)
            except Refusal as refusal:
                self._say(value, f"limits.{key}", refusal.reason, refusal.hint or "`none` switches it off")
        return Limits(**set_)

    def _rates(self, node: doc.Mapping) -> dict[str, Rate]:
        from jobspecs import document as doc

        found: dict[str, Rate] = {}
        for name, (at, block) in node.entries.items():
            key = f"rates.{name}"
            self.currency(name, key, at)
            if not isinstance(block, doc.Mapping) or not {"rate", "as_of"} <= set(block.entries):
                self._say(at, key, "needs a rate and its day", f"write {name}: {{rate: 0.139, as_of: 2026-10-01}}")
                continue
            fields = self._known(block, ("rate", "as_of"), f"{key}.")
            day = self._text(fields["as_of"][1], f"{key}.as_of")
            if not re.fullmatch(r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])", day):
                self._say(fields["as_of"][1], f"{key}.as_of", f"{day!r} is not a day", "write it like 2026-10-01")
            try:
                rate = parse_number(self._text(fields["rate"][1], f"{key}.rate"))
                if rate <= 0:
                    raise Refusal("a rate is more than 0")
                found[name] = Rate(rate, day)
            except Refusal as refusal:
                self._say(fields["rate"][1], f"{key}.rate", refusal.reason, refusal.hint)
        return found

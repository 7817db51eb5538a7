"""The types of a spec's values: how each reads what was typed, how it is stored, and what an editor may accept.

Rules: a value arrives as the text that was typed (or as the JSON that a stored spec holds), and the field's type
decides what it is; YAML's own typing plays no part. A value that looks like a credential is refused wherever it is.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Literal, TypeVar

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from jobspecs import gpus, units
from jobspecs.names import check_name
from jobspecs.problems import Refusal, looks_like_secret_name, looks_like_secret_value, shown

T = TypeVar("T")
_SECRETS_HINT = "move it to secrets: `secrets: [NAME]`, then `gpujob secret set NAME` or export it"
# What an editor's YAML reader may make of text that was typed without quotes.
_TEXT_JSON = {"type": ["string", "number", "boolean"]}
_NUMBER_JSON = {"type": ["number", "string"]}
_MAX_PATTERN = 1000


def kind_of(value: object) -> str:
    """What `value` is, in the words of a spec's author."""
    if value is None:
        return "nothing"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, (list, tuple)):
        return "a list"
    return shown(value)


def text(value: object) -> str:
    """`value` when it is text that may be stored; refuses other kinds and credentials."""
    if not isinstance(value, str):
        raise Refusal(f"expected text, got {kind_of(value)}")
    if looks_like_secret_value(value):
        raise Refusal("holds something that looks like a token or password", _SECRETS_HINT)
    return value


def _line(value: object) -> str:
    """Text of one line that says something."""
    said = text(value).strip()
    if not said:
        raise Refusal("is empty")
    if "\n" in said:
        raise Refusal("must be on one line")
    return said


def _read(kind: type[T], parse: Callable[[str], T]) -> Callable[[object], T]:
    """A validator that passes a `kind` on and parses everything that was typed."""

    def read(value: object) -> T:
        if isinstance(value, kind) and not isinstance(value, (str, bool)):
            return value
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)
        return parse(_line(value))

    return read


def _bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    said = _line(value)
    if said in ("true", "True", "TRUE"):
        return True
    if said in ("false", "False", "FALSE"):
        return False
    if said.lower() in ("yes", "on", "y", "no", "off", "n"):
        raise Refusal(f"{shown(said)} is a boolean only in YAML 1.1", "write true or false")
    raise Refusal(f"expected true or false, got {shown(said)}")


def _spot(value: object) -> bool | Literal["auto"]:
    if isinstance(value, str) and value.strip() == "auto":
        return "auto"
    try:
        return _bool(value)
    except Refusal as refusal:
        hints = {"spot": "write true", "on-demand": "write false", "never": "write false"}
        hint = hints.get(str(value).strip().lower(), "write auto, true or false")
        raise Refusal(refusal.reason.replace("true or false", "auto, true or false"), hint) from None


def _env_name(value: object) -> str:
    name = _line(value)
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
        raise Refusal(f"{shown(name)} cannot name an environment variable", "use letters, digits and _")
    return name


def _open_env_name(value: object) -> str:
    """A variable whose value stands in the spec, so neither ours nor a secret."""
    name = _env_name(value)
    if name.startswith("GPUJOB_"):
        raise Refusal(f"{name} is set by gpujob itself", "choose another name")
    if looks_like_secret_name(name):
        raise Refusal(f"{name} looks like a secret", f"move it to secrets: `secrets: [{name}]`")
    return name


def _shell(value: object) -> str:
    if isinstance(value, (list, tuple)):
        raise Refusal("expected shell text, got a list", "write the commands as lines of a block: `run: |`")
    command = text(value)
    if not command.strip():
        raise Refusal("is empty")
    return command


_TIME_VARYING = re.compile(r"\$\(|`|%[YymdHMSjsfF]|\{now|\$\{now|strftime|\$(RANDOM|EPOCH|SECONDS)")


def _machine_path(value: object) -> str:
    """A path on the machine: below its root folder or absolute, never upwards, the same in every attempt."""
    path = _line(value)
    if _TIME_VARYING.search(path):
        raise Refusal(
            f"{shown(path)} changes with the time, so the next attempt would not find it",
            "use a fixed path; each attempt gets the same $GPUJOB_CKPT and $GPUJOB_OUT",
        )
    if path.startswith("~") or "$" in path:
        raise Refusal(f"{shown(path)} would not be expanded", "write it relative to its $GPUJOB_ folder, or absolute")
    if "\\" in path or re.match(r"[A-Za-z]:/", path):
        raise Refusal(f"{shown(path)} is not a path on a Linux machine", "separate its parts with /")
    if ".." in path.split("/"):
        raise Refusal(f"{shown(path)} leads out of its folder", "a path has no .. part")
    return path


def _pattern_path(value: object) -> str:
    path = _machine_path(value)
    unknown = [name for name in re.findall(r"\{([^}]*)\}", path) if name not in ("n", "step", "epoch")]
    if unknown:
        raise Refusal(f"{shown(path)} has the unknown field {{{unknown[0]}}}", "the number is {n}, {step} or {epoch}")
    return path


def _outside(value: object) -> str:
    """A place outside the machine: a path beside the spec, a URI, or a store's name with a prefix."""
    place = _line(value)
    unknown = [name for name in re.findall(r"\{([^}]*)\}", place) if name not in ("job", "leg", "attempt")]
    if unknown:
        raise Refusal(f"{shown(place)} has the unknown field {{{unknown[0]}}}", "{job}, {leg}, {attempt} are filled in")
    if re.search(r"\$\(|`", place):
        raise Refusal(f"{shown(place)} would not be run by a shell", "{job}, {leg} and {attempt} are filled in")
    return place


def _regex(value: object) -> str:
    pattern = text(value)
    try:
        if len(pattern) > _MAX_PATTERN:
            raise Refusal(f"is longer than {_MAX_PATTERN} characters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            groups = re.compile(pattern).groups
    except (re.error, RecursionError, OverflowError) as error:
        raise Refusal(f"{shown(pattern)} is not a regular expression: {error}") from None
    if not groups:
        raise Refusal(f"{shown(pattern)} captures nothing", "put parentheses around the number: step=([0-9]+)")
    return pattern


def _notify(value: object) -> str:
    name = _line(value)
    if "/" in name or ":" in name or "@" in name:
        raise Refusal("notify takes names, never addresses", "put the address under notify in the config and name it")
    return name


def _provider(value: object) -> str:
    name = _line(value)
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,39}", name):
        raise Refusal(f"{shown(name)} is not a provider's name", "`gpujob providers` lists them")
    return name


def _image(value: object) -> str | dict[str, str]:
    if isinstance(value, Mapping):
        return {_provider(name): _line(image) for name, image in value.items()}
    return _line(value)


def _model_params(value: object) -> str:
    said = _line(value)
    if not re.fullmatch(r"[0-9]+(\.[0-9]+)?[KMBT]", said):
        raise Refusal(f"{shown(said)} is not a number of parameters", "write it like 7B or 350M")
    return said


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the machine and the one on this computer that leads to it."""

    machine: int
    local: int

    def __str__(self) -> str:
        return str(self.machine) if self.machine == self.local else f"{self.local}:{self.machine}"


def _port(said: str) -> Port:
    local, colon, machine = said.partition(":")
    numbers = [units.parse_int(each, 1, 65_535) for each in ((local, machine) if colon else (local,))]
    return Port(numbers[-1], numbers[0])


def whole(low: int, high: int | None = None, why: str = "") -> Any:
    """The annotations of a whole number within [low, high]; `why` is added when it is refused."""

    def parse(said: str) -> int:
        try:
            return units.parse_int(said, low, high)
        except Refusal as refusal:
            raise Refusal(refusal.reason, refusal.hint or why) from None

    def read(value: object) -> int:
        return parse(str(value) if isinstance(value, int) and not isinstance(value, bool) else _line(value))

    schema: dict[str, Any] = {"type": ["integer", "string"], "minimum": low}
    return [PlainValidator(read), WithJsonSchema(schema | ({"maximum": high} if high is not None else {}))]


def one_or_many(value: object) -> object:
    """A single value where a list is expected, as that list."""
    return value if isinstance(value, (list, tuple)) else (value,)


def _share(value: object) -> float:
    """A share of a whole: above 0, at most 1; a percentage is understood."""
    said = str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else _line(value)
    percent = said.endswith("%")
    found = float(units.parse_number(said.removesuffix("%").strip())) / (100 if percent else 1)
    if not 0 < found <= 1:
        raise Refusal(f"{shown(said)} is not above 0 and at most 1", "0.1 is a tenth")
    return found


_as_text = PlainSerializer(str, return_type=str)

Text = Annotated[str, PlainValidator(_line), WithJsonSchema(_TEXT_JSON)]
AnyText = Annotated[str, PlainValidator(text), WithJsonSchema(_TEXT_JSON)]
Shell = Annotated[str, PlainValidator(_shell), WithJsonSchema({"type": ["string", "boolean"]})]
Name = Annotated[str, PlainValidator(lambda value: check_name(_line(value))), WithJsonSchema(_TEXT_JSON)]
Spot = Annotated[
    bool | Literal["auto"],
    PlainValidator(_spot),
    WithJsonSchema({"enum": ["auto", True, False, "true", "false"]}),
]
Share = Annotated[
    float, PlainValidator(_share),
    WithJsonSchema({"type": ["number", "string"], "exclusiveMinimum": 0, "maximum": 1}),
]  # fmt: skip
Number = Annotated[float, PlainValidator(_read(float, lambda t: float(units.parse_number(t)))),
                   WithJsonSchema(_NUMBER_JSON)]  # fmt: skip
DurationField = Annotated[
    units.Duration, PlainValidator(_read(units.Duration, units.parse_duration)), _as_text,
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": "^[0-9]"}, {"const": 0}],
                    "examples": ["90s", "30m", "12h", "3d"]}),
]  # fmt: skip
SizeField = Annotated[
    units.Size, PlainValidator(_read(units.Size, units.parse_size)), _as_text,
    WithJsonSchema({"type": "string", "pattern": "^[0-9.]+ ?[KMGTPkmgtp]?i?[Bb]$", "examples": ["100GB", "16GiB"]}),
]  # fmt: skip
MoneyField = Annotated[
    units.Money, PlainValidator(_read(units.Money, units.parse_money)), _as_text,
    WithJsonSchema(_NUMBER_JSON | {"examples": ["1.20 USD", 15]}),
]  # fmt: skip
CountRange = Annotated[
    units.Range, PlainValidator(_read(units.Range, units.parse_range)), _as_text,
    WithJsonSchema({"type": ["integer", "string"], "examples": [8, "8..", "8..32"]}),
]  # fmt: skip
SizeRange = Annotated[
    units.Range, PlainValidator(_read(units.Range, lambda t: units.parse_range(t, sizes=True))), _as_text,
    WithJsonSchema({"type": "string", "examples": ["32GB", "32GB..", "32GB..128GB"]}),
]  # fmt: skip
Moment = Annotated[
    datetime, PlainValidator(_read(datetime, units.parse_moment)),
    PlainSerializer(units.moment_text, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["2026-12-01T09:00:00+08:00"]}),
]  # fmt: skip
PortField = Annotated[
    Port, PlainValidator(_read(Port, _port)), _as_text,
    WithJsonSchema({"type": ["integer", "string"], "minimum": 1, "maximum": 65_535, "examples": [8888, "8080:80"]}),
]  # fmt: skip
EnvName = Annotated[str, PlainValidator(_env_name), WithJsonSchema({"type": "string"})]
OpenEnvName = Annotated[str, PlainValidator(_open_env_name), WithJsonSchema({"type": "string"})]
EnvValue = Annotated[
    str | None, PlainValidator(lambda value: None if value is None else text(value)),
    WithJsonSchema({"type": ["string", "number", "boolean", "null"]}),
]  # fmt: skip
Env = dict[OpenEnvName, EnvValue]
MachinePath = Annotated[str, PlainValidator(_machine_path), WithJsonSchema(_TEXT_JSON)]
PatternPath = Annotated[str, PlainValidator(_pattern_path), WithJsonSchema(_TEXT_JSON)]
Outside = Annotated[str, PlainValidator(_outside), WithJsonSchema({"type": "string"})]
Regex = Annotated[str, PlainValidator(_regex), WithJsonSchema({"type": "string"})]
NotifyName = Annotated[str, PlainValidator(_notify), WithJsonSchema({"type": "string"})]
ProviderName = Annotated[str, PlainValidator(_provider), WithJsonSchema({"type": "string"})]
ModelParams = Annotated[str, PlainValidator(_model_params), WithJsonSchema({"type": "string"})]
Image = Annotated[
    str | dict[str, str], PlainValidator(_image),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}]}),
]  # fmt: skip


def _gpu_document(ask: gpus.GpuAsk) -> str | list[str]:
    choices = [str(choice) for choice in ask.choices]
    return choices[0] if len(choices) == 1 else choices or "none"


_GPU_JSON = {
    "anyOf": [
        {"type": ["string", "integer"]},
        {
            "type": "object",
            "properties": {
                "name": _TEXT_JSON,
                "memory": {"type": "string"},
                "count": {"type": ["integer", "string"], "minimum": 1},
            },
            "additionalProperties": False,
        },
    ]
}
Gpu = Annotated[
    gpus.GpuAsk, PlainValidator(gpus.parse_gpu), PlainSerializer(_gpu_document, return_type=str | list[str]),
    WithJsonSchema({"anyOf": [*_GPU_JSON["anyOf"], {"type": "array", "items": _GPU_JSON, "minItems": 1}]}),
]  # fmt: skip

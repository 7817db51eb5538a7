"""Which providers there are, and how one is made: entry points of the group `gpujob.providers`, loaded lazily.

Rules
- A provider's module is imported when it is asked for by name, never to list names.
- Built-ins are registered as plugins are; the table below only stands in for the metadata of an uninstalled
  checkout, and a plugin cannot take a built-in's name.
- What goes wrong in a plugin is said with the name of its distribution, which is what its user can act on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from providers.base import Provider, ProviderConfig
from providers.errors import Invalid

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "gpujob.providers"
DISTRIBUTION = "gpujob"
BUILT_IN = {
    "autodl": "providers.autodl:AutoDlProvider",
    "aws": "providers.aws:AwsProvider",
    "lambda": "providers.lambda_cloud:LambdaProvider",
    "local": "providers.local:LocalProvider",
    "runpod": "providers.runpod:RunPodProvider",
    "ssh": "providers.ssh:SshProvider",
    "vast": "providers.vast:VastProvider",
}
#: Providers with one key -> the variable that holds it; `gpujob login` keeps it under the same name.
KEYS = {
    "autodl": "AUTODL_TOKEN",
    "aws": "AWS_LOGIN_KEY",  # id and secret in one line; boto3's own variables win
    "lambda": "LAMBDA_API_KEY",
    "runpod": "RUNPOD_API_KEY",
    "vast": "VAST_API_KEY",
}
#: What a key looks like where it is not one word, as the prompt says it.
KEY_FORMS = {"aws": "access key id, a space, secret access key"}
#: Providers whose own tools find credentials elsewhere as well -> variables of theirs that win over a kept key.
OWN_WAYS: dict[str, tuple[str, ...]] = {"aws": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE")}


class UnknownProvider(Invalid):
    """No provider of that name; the message gives the nearest and all names."""

    kind = "unknown-provider"


class BrokenProvider(Invalid):
    """The provider is registered but cannot be loaded; the message names what installed it."""

    kind = "broken-provider"


def _entry_points() -> dict[str, EntryPoint]:
    """name -> entry point; the first registration of a name wins, a built-in's always."""
    import importlib.metadata  # a fifth of the time that `--help` has

    EntryPoint = importlib.metadata.EntryPoint
    found = {name: EntryPoint(name, value, GROUP) for name, value in BUILT_IN.items()}
    for point in importlib.metadata.entry_points(group=GROUP):
        # Installed built-ins replace their stand-ins, so that an error can say where they came from.
        if point.name not in found or BUILT_IN.get(point.name) == point.value:
            found[point.name] = point
    return found


def names() -> tuple[str, ...]:
    """All registered providers, sorted; nothing is imported."""
    return tuple(sorted(_entry_points()))


def get_provider(name: str, config: ProviderConfig) -> Provider:
    """Make the provider `name`. Raises `UnknownProvider`, `BrokenProvider`, or what its constructor raises."""
    points = _entry_points()
    point = points.get(name)
    if point is None:
        import difflib

        near = difflib.get_close_matches(name, points, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UnknownProvider(
            f"no provider is called {name!r}: {hint}There is {', '.join(sorted(points))}; "
            "others come as packages that register under gpujob.providers",
            provider=name,
        )
    provider: Any = _load(point)(config)
    lacking = [verb for verb in _PROTOCOL if not hasattr(provider, verb)]
    if lacking:
        raise BrokenProvider(
            f"{_origin(point)} does not fit this gpujob: it has no {', '.join(lacking)}", provider=name
        )
    return provider  # type: ignore[no-any-return]


_PROTOCOL = (
    "name",
    "account",
    "caps",
    "regions",
    "offers",
    "create",
    "list",
    "get",
    "destroy",
    "set_expiry",
)


def _load(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as problem:  # a plugin's import may raise anything at all, and each is its own fault
        raise BrokenProvider(
            f"{_origin(point)} cannot be loaded: {type(problem).__name__}: {problem}. "
            "Reinstall or update that package, or remove it",
            provider=point.name,
        ) from problem


def _origin(point: EntryPoint) -> str:
    """`provider runpod (runpod-plugin 1.2, runpod_plugin:Provider)`."""
    package = f"{point.dist.name} {point.dist.version}" if point.dist is not None else DISTRIBUTION
    return f"provider {point.name} ({package}, {point.value})"

"""Keys of providers: the providers' own variables, else what `gpujob login` keeps; and what an adapter is handed.

Rules: looked up at each call, so a controller that runs takes a new key at once; the environment wins; a key that is
kept makes its provider a configured one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from providers.registry import KEYS

if TYPE_CHECKING:
    from orchestrator.home import Home
    from providers.base import ProviderConfig


def provider_config(home: Home, deployment: str, settings: Mapping[str, Any]) -> ProviderConfig:
    """What the registry hands to an adapter: the GPU table, its block of the config, a way to its key."""
    from jobspecs.gpu_table import GPU_CLASSES
    from providers.base import GpuRow, ProviderConfig

    gpus = tuple(GpuRow(gpu.name, gpu.vram_gb, gpu.spellings) for gpu in GPU_CLASSES)
    return ProviderConfig(deployment, home.state, gpus, settings, lookup(home))


def lookup(home: Home) -> Callable[[str], str | None]:
    """A key by its variable: environment, keyring or private file. Raises `AuthFailed` for a keyring that is locked."""

    def find(variable: str) -> str | None:
        from orchestrator.secrets import SecretError, resolve
        from providers.errors import AuthFailed

        try:
            return resolve((variable,), home).values.get(variable)
        except SecretError as error:
            raise AuthFailed(str(error), what="key") from error

    return find


def logged_in(home: Home) -> tuple[str, ...]:
    """Providers whose key `gpujob login` keeps, by name; nothing is decrypted or imported for it."""
    if not home.secret_store().is_dir():
        return ()
    from orchestrator.secrets import names

    kept = names(home)
    return tuple(name for name, variable in sorted(KEYS.items()) if variable in kept)

"""The registry: names without imports, errors that say what to do."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from providers import registry
from providers.base import Provider, ProviderConfig


@pytest.fixture
def config(tmp_path: Path) -> ProviderConfig:
    return ProviderConfig("dep", tmp_path, ())


class FakeDistribution:
    name = "acme-gpus"
    version = "1.2"


def register(monkeypatch: pytest.MonkeyPatch, *points: EntryPoint) -> None:
    for point in points:
        vars(point).update(dist=FakeDistribution())
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: points)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module on the path that a plugin's distribution would bring."""
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path / "acme_plugin.py"
    sys.modules.pop("acme_plugin", None)


def test_local_works_where_nothing_is_installed(monkeypatch: pytest.MonkeyPatch, config: ProviderConfig) -> None:
    register(monkeypatch)
    assert registry.names() == tuple(sorted(registry.BUILT_IN))
    provider = registry.get_provider("local", config)
    assert isinstance(provider, Provider)
    assert (provider.name, provider.account) == ("local", "local")


def test_names_imports_no_provider() -> None:
    code = "import sys; from providers import registry; registry.names(); print('providers.local' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_an_unknown_name_is_answered_with_the_nearest(config: ProviderConfig) -> None:
    with pytest.raises(registry.UnknownProvider, match=r"no provider is called 'locl': did you mean local\?"):
        registry.get_provider("locl", config)
    with pytest.raises(registry.UnknownProvider) as far:
        registry.get_provider("zzz", config)
    assert "did you mean" not in str(far.value)
    assert "local" in str(far.value)


def test_a_plugin_is_loaded_by_its_entry_point(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, config: ProviderConfig
) -> None:
    plugin.write_text("from providers.local import LocalProvider\nclass Acme(LocalProvider):\n    name = 'acme'\n")
    register(monkeypatch, EntryPoint("acme", "acme_plugin:Acme", registry.GROUP))
    assert registry.names() == tuple(sorted(("acme", *registry.BUILT_IN)))
    assert registry.get_provider("acme", config).name == "acme"


def test_a_plugin_that_fails_to_import_is_named_with_its_distribution(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, config: ProviderConfig
) -> None:
    plugin.write_text("raise RuntimeError('needs acme-sdk')\n")
    register(monkeypatch, EntryPoint("acme", "acme_plugin:Acme", registry.GROUP))
    with pytest.raises(registry.BrokenProvider) as broken:
        registry.get_provider("acme", config)
    assert "provider acme (acme-gpus 1.2, acme_plugin:Acme) cannot be loaded" in str(broken.value)
    assert "RuntimeError: needs acme-sdk" in str(broken.value)


def test_a_plugin_without_a_verb_is_refused_when_made(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, config: ProviderConfig
) -> None:
    plugin.write_text(
        "class Acme:\n    name = account = 'acme'\n    caps = None\n"
        "    def __init__(self, config): pass\n"
        "    regions = offers = create = list = get = set_expiry = None\n"
    )
    register(monkeypatch, EntryPoint("acme", "acme_plugin:Acme", registry.GROUP))
    with pytest.raises(registry.BrokenProvider, match=r"acme-gpus 1\.2.*has no destroy"):
        registry.get_provider("acme", config)


def test_a_plugin_cannot_take_a_built_in_name(
    plugin: Path, monkeypatch: pytest.MonkeyPatch, config: ProviderConfig
) -> None:
    plugin.write_text("class Acme: pass\n")
    register(monkeypatch, EntryPoint("local", "acme_plugin:Acme", registry.GROUP))
    assert type(registry.get_provider("local", config)).__name__ == "LocalProvider"

"""A plugin provider with faults: machines of this host, and a folder of small files that say what goes wrong.

It is registered as any plugin is: a distribution of its own on the controller's path, with an entry point. Files of
`<state folder>/faults/`, looked at on every call:

    create-hang      the machine is made, and the answer comes only when the file is gone
    create-lost      the machine is made, the answer is not
    create-twice     two machines with one tag
    create-refused   no capacity
    list-broken      every listing fails with what the file says
    list-bug         the adapter raises something that is no provider error
    proxy            a port: the first machine is reached through it
    created, listed  written here: a line for each call
    impostor         another machine, which knows our key but no nonce of ours, answers at the address
"""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from providers.base import Boot, Endpoint, Instance, Listing, Offer, ProviderConfig, Tag
from providers.errors import Ambiguous, NoCapacity
from providers.local import LocalProvider

NAME = "faulty"


class FaultyProvider(LocalProvider):
    """`local` by another name."""

    name = NAME
    account = NAME

    def __init__(self, config: ProviderConfig) -> None:
        super().__init__(config)
        self.faults = config.home / "faults"

    def said(self, name: str) -> str | None:
        try:
            return (self.faults / name).read_text()
        except FileNotFoundError:
            return None

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        with (self.faults / "created").open("a") as made:
            made.write(f"{tag.rental}\n")
        if self.said("create-refused") is not None:
            raise NoCapacity("none left", provider=self.name)
        instance = super().create(offer, tag, end, boot)
        if not (self.faults / "first").exists():
            (self.faults / "first").write_text(instance.ref.id)
        if self.said("create-twice") is not None:
            super().create(offer, tag, end, boot)
        if self.said("impostor") == "":
            other = LocalProvider(dataclasses.replace(self.config, deployment="others"))
            found = other.create(
                dataclasses.replace(offer, provider="local", account="local"),
                Tag("others", "strange"),
                end,
                dataclasses.replace(boot, hook="mkdir -p ~/.gpujob; echo not-yours > ~/.gpujob/nonce\n"),
            )
            assert found.endpoint is not None
            (self.faults / "impostor").write_text(f"{found.ref.id} {found.endpoint.port} {found.host_keys[0]}")
        while self.said("create-hang") is not None:
            time.sleep(0.05)
        if self.said("create-lost") is not None:
            raise Ambiguous("the answer was lost", provider=self.name, what="create")
        return self._shown(instance)

    def list(self, region: str) -> Listing:
        with (self.faults / "listed").open("a") as made:
            made.write(f"{region}\n")
        broken = self.said("list-broken")
        if broken is not None:
            raise Ambiguous(broken, provider=self.name, what="list")
        if self.said("list-bug") is not None:
            raise KeyError("instances")
        return super().list(region)

    def _instance(self, record, status: str) -> Instance:  # type: ignore[no-untyped-def]
        return self._shown(super()._instance(record, status))

    def _shown(self, instance: Instance) -> Instance:
        endpoint, proxy, other = instance.endpoint, self.said("proxy"), self.said("impostor")
        if endpoint is None or endpoint.port in (int(proxy or 0), int((other or "0 0").split()[1])):
            return instance
        if other:
            _, port, key = other.split(" ", 2)
            return dataclasses.replace(
                instance, endpoint=dataclasses.replace(endpoint, port=int(port)), host_keys=(key,)
            )
        if proxy is not None and self.said("first") in (instance.ref.id, None):
            (self.faults / "real-port").write_text(str(endpoint.port))
            return dataclasses.replace(instance, endpoint=Endpoint(endpoint.host, int(proxy), endpoint.user))
        return instance


def install(folder: Path) -> Path:
    """Make a distribution that registers the provider; the folder belongs on PYTHONPATH."""
    info = folder / "gpujob_faulty-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: gpujob-faulty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[gpujob.providers]\n{NAME} = gpujob_faults:FaultyProvider\n")
    return folder


__all__ = ["NAME", "FaultyProvider", "install"]

"""`ssh` held to the suite that every provider must pass, on machines of this host in the role of somebody's own."""

from __future__ import annotations

import itertools
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_machines import LocalMachines
from fake_rest import GPUS

from providers.base import Ask, Boot, GpuWish, Instance, Offer, ProviderConfig, Ref, Tag
from providers.contract import CHECKS, Terms
from providers.errors import Ambiguous, AuthFailed, Invalid, NoCapacity
from providers.ssh import SshProvider, host_folder

TAG = Tag("contract", "rental-1", "job-1", "me")
HOOK = "echo $$ >~/hook.pid; while :; do sleep 60; done"
FOUR_HOSTS = 4


@dataclass
class Rack:
    """Some machines of one's own, and the state folder of the computer that they were added to."""

    home: Path
    machines: LocalMachines
    hosts: dict[str, dict[str, Any]]
    homes: dict[str, Path]  # the home folder on each host, as this computer sees it

    def provider(self, deployment: str = "contract", **changes: Any) -> SshProvider:
        hosts = {name: {**block, **changes} for name, block in self.hosts.items()}
        return SshProvider(ProviderConfig(deployment, self.home, GPUS, {"hosts": hosts}))


@pytest.fixture(scope="module")
def rack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rack]:
    home = tmp_path_factory.mktemp("own")
    machines = LocalMachines(home / "cloud", GPUS)
    found = Rack(home, machines, {}, {})
    try:
        for number in range(1, FOUR_HOSTS + 1):
            name = f"box{number}"
            folder = host_folder(home, name)
            folder.mkdir(parents=True)
            key = folder / "id_ed25519"
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "ours", "-f", str(key)], check=True)
            handle, found.homes[name] = machines.own(name, (folder / "id_ed25519.pub").read_text())
            seen = machines.provider.get(Ref("local", "local", "here", handle))
            assert seen is not None
            assert seen.endpoint is not None
            (folder / "known_hosts").write_text(f"{name} {seen.host_keys[0]}\n")
            found.hosts[name] = {
                "host": seen.endpoint.host, "port": seen.endpoint.port, "user": seen.endpoint.user, "gpu": "RTX-4090",
                "count": 1, "cpus": 8, "memory": 32 * 10**9, "disk": 100 * 10**9, "price": "1.98 CNY",
            }  # fmt: skip
        yield found
    finally:
        machines.close()


def in_turn() -> Callable[[tuple[Offer, ...]], Offer]:
    """One host is one machine: each rental takes the next."""
    numbers, lock = itertools.count(), threading.Lock()

    def pick(offers: tuple[Offer, ...]) -> Offer:
        with lock:
            return sorted(offers, key=lambda offer: offer.key)[next(numbers) % len(offers)]

    return pick


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_ssh_keeps_the_contract(check: Callable[[Terms], None], rack: Rack) -> None:
    key = (host_folder(rack.home, "box1") / "id_ed25519.pub").read_text()
    check(
        Terms(
            make=rack.provider,
            deployment="contract",
            public_key=key,
            ask=Ask(gpus=(GpuWish("RTX-4090", 24, 1),)),
            gpus=GPUS,
            strangers=lambda: rack.provider("someone-else"),
            pick=in_turn(),
        )
    )


# --- somebody's own machine -------------------------------------------------------------------------------------------


@pytest.fixture
def taken(rack: Rack) -> Iterator[Callable[..., Instance]]:
    """Take box1; it is given back at the end."""
    made: list[Instance] = []

    def take(provider: SshProvider | None = None, hook: str = HOOK, tag: Tag = TAG) -> Instance:
        ours = provider or rack.provider()
        offer = next(offer for offer in ours.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 1),))) if offer.key == "box1")
        made.append(ours.create(offer, tag, time.time() + 900, Boot(hook, KEY)))
        return made[-1]

    yield take
    for instance in made:
        rack.provider().destroy(instance.ref)


KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX gpujob"


def until(path: Path) -> str:
    for _ in range(200):
        if path.exists() and path.read_text().strip():
            return path.read_text().strip()
        time.sleep(0.05)
    raise AssertionError(f"{path} never came")


def test_a_host_in_use_is_no_capacity_whoever_asks(rack: Rack, taken: Callable[..., Instance]) -> None:
    taken()
    stranger = rack.provider("someone-else")
    (offer,) = [offer for offer in stranger.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 1),))) if offer.key == "box1"]
    with pytest.raises(NoCapacity, match="box1 is in use by rental rental-1 of deployment contract"):
        stranger.create(offer, Tag("someone-else", "theirs"), 2e9, Boot("true", KEY))
    assert [i.tag for i in stranger.list("box1").instances if i.status == "held"] == []
    assert [i.tag for i in stranger.list_all("box1").instances if i.status == "held"] == [TAG]


def test_a_host_is_given_back_as_it_was_found(rack: Rack, taken: Callable[..., Instance]) -> None:
    home = rack.homes["box1"]
    (home / "thesis.txt").write_text("mine")
    (home / "gpujob" / "other").mkdir(parents=True, exist_ok=True)
    before = (home / ".ssh" / "authorized_keys").read_text()
    made = taken()
    pid = until(home / "hook.pid")
    (home / "hook.pid").unlink()
    (home / ".gpujob").mkdir(exist_ok=True)
    (home / ".gpujob" / "nonce").write_text("the-nonce\n")
    (home / "gpujob" / "job-1").mkdir()
    assert (home / ".ssh" / "authorized_keys").read_text() == before + f"{KEY[:-7]} gpujob-rental=rental-1\n"
    provider = rack.provider()
    assert provider.destroy(made.ref).value == "acknowledged"
    assert (home / ".ssh" / "authorized_keys").read_text() == before
    assert (home / "thesis.txt").read_text() == "mine"
    assert not (home / ".gpujob").exists()
    assert not (home / "gpujob" / "job-1").exists()
    assert (home / "gpujob" / "other").exists()
    seen = provider.get(made.ref)
    assert seen is not None
    assert seen.status in provider.caps.dead_statuses
    assert pid.isdecimal()


def test_a_release_command_of_ones_own_is_run_and_its_failure_is_tried_again(
    rack: Rack, taken: Callable[..., Instance]
) -> None:
    made = taken()
    home = rack.homes["box1"]
    broken = rack.provider(release="echo no lock >&2; exit 3")
    with pytest.raises(Ambiguous, match="ended with 3: no lock"):
        broken.destroy(made.ref)
    held = broken.get(made.ref)
    assert held is not None
    assert held.status == "held"
    rack.provider(release="echo given back >~/released").destroy(made.ref)
    assert (home / "released").read_text() == "given back\n"


def test_a_host_that_is_away_is_unknown_and_delays_no_other(rack: Rack) -> None:
    away = rack.provider()
    away._hosts["box1"] = {**away._hosts["box1"], "port": 1}
    with pytest.raises(Ambiguous, match="box1 did not answer to look"):
        away.list("box1")
    assert [i for i in away.list("box2").instances if i.status == "held"] == []


def test_a_host_with_another_key_than_pinned_is_not_talked_to(rack: Rack) -> None:
    pinned = host_folder(rack.home, "box2") / "known_hosts"
    kept = pinned.read_text()
    pinned.write_text((host_folder(rack.home, "box3") / "known_hosts").read_text().replace("box3", "box2"))
    try:
        with pytest.raises(AuthFailed, match="gpujob host add box2"):
            rack.provider().list("box2")
    finally:
        pinned.write_text(kept)


def test_offers_are_what_the_config_says_of_the_hosts(rack: Rack) -> None:
    provider = rack.provider()
    offers = provider.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 1),), cpus_min=8, memory_min=32 * 10**9))
    assert [(o.key, str(o.hourly), o.currency, o.spot) for o in offers] == [
        (f"box{n}", "1.98", "CNY", False) for n in range(1, FOUR_HOSTS + 1)
    ]
    assert provider.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 1),), cpus_min=9)) == ()
    assert provider.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 1),), regions=("box2",)))[0].region == "box2"
    assert provider.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 1),), spot=True)) == ()
    with pytest.raises(Invalid, match="none had docker when it was added"):
        provider.offers(Ask(image="pytorch/pytorch"))


def test_a_docker_image_runs_on_the_hosts_that_have_docker(tmp_path: Path) -> None:
    block = {"host": "198.51.100.7", "port": "22", "user": "me", "cpus": "8", "memory": "64", "disk": "64"}
    hosts = {"with": {**block, "docker": "true"}, "without": block}
    provider = SshProvider(ProviderConfig("contract", tmp_path, GPUS, {"hosts": hosts}))
    (offer,) = provider.offers(Ask(image="pytorch/pytorch:2.4.0"))
    assert (offer.key, offer.container, offer.image) == ("with", "pytorch/pytorch:2.4.0", "")
    assert {each.container for each in provider.offers(Ask())} == {""}
    with pytest.raises(Invalid, match="no registry or tag"):
        provider.offers(Ask(image="ubuntu"))


def test_without_hosts_there_is_nothing_and_nothing_fails(tmp_path: Path) -> None:
    empty = SshProvider(ProviderConfig("contract", tmp_path, GPUS))
    assert empty.offers(Ask()) == ()
    assert [empty.list(region).instances for region in empty.regions()] == [()]


def test_a_probe_says_what_the_host_has(rack: Rack) -> None:
    found = rack.provider().probe("box1")
    assert found["cpus"] >= 1
    assert found["memory"] > 10**8
    assert found["lacks"] == []

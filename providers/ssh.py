"""`ssh`: machines that you own or rented by hand, one rental at a time each, given back as you found them.

Rules
- A host is a region of its own, so one that does not answer delays no other; its name is the offer.
- Nothing is powered off or ended but what a release orders: `none`, `poweroff`, or a command of yours. The boot hook
  ends the job's processes at its end; no timer here stops somebody's bill.
- Hosts are added by `gpujob host add`, which pins the host key and installs a key of its own; without either, no verb.
- A host in use is no capacity. One that cannot be reached is unknown, never free and never gone.
"""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from providers import ssh_host
from providers.base import (
    Ask,
    Boot,
    Caps,
    DestroyAck,
    Endpoint,
    Instance,
    Listing,
    Offer,
    ProviderConfig,
    Ref,
    Tag,
    is_docker_image,
)
from providers.errors import Ambiguous, AuthFailed, Invalid, NoCapacity
from providers.fields import at, number, parsed, text, whole
from providers.naming import check_tag, ours, read_tag_text, tag_text
from providers.startup import packed

ANSWER_S = 90.0  # a release command of the user's own has a minute
CONNECT_S = 10
HELD, RELEASED = "held", "released"
NAME = re.compile(r"[a-z][a-z0-9-]{0,30}")

CAPS = Caps(
    dead_statuses=frozenset({RELEASED}),
    self_end="nothing",
    server_ttl=False,
    boot_hook="once",  # nothing starts it again when the host's owner reboots it
    power_off_allowed=False,
    stop_bills="all",
    dead_listed_s=ssh_host.ENDED_FOR_S,
    ready_within_s=120.0,
    name_pattern=r"[a-z][a-z0-9-]{0,62}",
    source="providers/ssh.py",
    as_of="2026-11-30",
)


def host_folder(home: Path, name: str) -> Path:
    """Where a host's key and pinned host key lie, below gpujob's state folder."""
    return home / "hosts" / name


class SshProvider:
    """Own machines. Settings: `hosts`, name -> host, port, user, gpu, count, cpus, memory, disk, price, release;
    the config's `hosts` are handed in so.
    """

    name = "ssh"
    account = "own"
    caps = CAPS

    def __init__(self, config: ProviderConfig) -> None:
        self.config = config
        hosts = config.settings.get("hosts")
        self._hosts: dict[str, Mapping[str, Any]] = {
            str(name): block
            for name, block in (hosts if isinstance(hosts, Mapping) else {}).items()
            if isinstance(block, Mapping) and block.get("host")
        }

    def regions(self) -> tuple[str, ...]:
        return tuple(sorted(self._hosts)) or ("none",)

    def offers(self, ask: Ask) -> tuple[Offer, ...]:
        """Hosts that have what is asked, by what was seen when they were added; whether one is in use shows the create.

        A docker image needs a host that had docker when it was added. Raises `Invalid` where none has.
        """
        if ask.spot:
            return ()
        hosts = self._hosts
        if ask.image:
            hosts = {name: block for name, block in hosts.items() if str(block.get("docker")).lower() == "true"}
            if not is_docker_image(ask.image):
                raise self._no_image(ask.image, "it has no registry or tag")
            if not hosts:
                raise self._no_image(ask.image, "none had docker when it was added")
        found = (self._offer(name, block, ask.image) for name, block in hosts.items())
        return tuple(offer for offer in found if offer is not None and _satisfies(offer, ask))

    def _no_image(self, image: str, why: str) -> Invalid:
        return Invalid(
            f"your machines cannot run the job in the image {image}: {why}. Leave `image` out there, or install docker "
            "and the NVIDIA container toolkit, then `gpujob host add` it again",
            provider=self.name, what="offers",
        )  # fmt: skip

    def _offer(self, name: str, block: Mapping[str, Any], image: str) -> Offer | None:
        gpu, (price, currency) = str(block.get("gpu") or ""), _price(block)
        row = next((row for row in self.config.gpus if row.name == gpu), None)
        if gpu and row is None:
            return None
        return Offer(
            self.name, self.account, name, name, False,
            # A machine that costs nothing by the hour still has a price, so that the cheapest is well defined.
            price or Decimal("0.0001"), currency,
            gpu=gpu, gpu_count=max(1, whole(block.get("count"))) if row else 0, vram_gb=row.vram_gb if row else 0,
            cpus=whole(block.get("cpus")), memory=whole(block.get("memory")), disk=whole(block.get("disk")), pool=name,
            container=image,
        )  # fmt: skip

    def create(self, offer: Offer, tag: Tag, end: float, boot: Boot) -> Instance:
        """Take the host. Raises `NoCapacity` when somebody holds it."""
        check_tag(tag, self.config, self.name)
        name = offer.key
        if name not in self._hosts:
            raise Invalid(f"there is no host {name!r}; `gpujob host ls` names them", provider=self.name, what="create")
        said = tag_text(tag, name)
        answer = self._run(
            name, "create", tag=said, rental=tag.rental, key=boot.public_key.strip(), hook=packed(boot.hook)
        )
        if answer.get("made") is not True:
            held = read_tag_text(at(answer, "held", "tag"))
            by = f"rental {held[0].rental} of deployment {held[0].deployment}" if held else "somebody"
            raise NoCapacity(f"{name} is in use by {by}", provider=self.name, what="create")
        return self._instance(name, tag, answer["held"], HELD)

    def list(self, region: str) -> Listing:
        return ours(self.list_all(region), self.config.deployment, region)

    def list_all(self, region: str) -> Listing:
        """Who holds the host, and whom it held lately."""
        if region not in self._hosts:
            return Listing()
        answer = self._run(region, "look")
        found = [(answer["held"], HELD)] if at(answer, "held", "tag") else []
        stones = answer.get("ended")
        found += [(stone, RELEASED) for stone in (stones.values() if isinstance(stones, Mapping) else ())]
        named = [(read_tag_text(at(record, "tag")), record, status) for record, status in found]
        return Listing(tuple(self._instance(region, t[0], record, status) for t, record, status in named if t))

    def get(self, ref: Ref) -> Instance | None:
        if ref.region not in self._hosts:
            raise Invalid(
                f"the host {ref.region} is not in the config any more; add it again to release it",
                provider=self.name, what="get",
            )  # fmt: skip
        return next((i for i in self.list_all(ref.region).instances if i.ref.id == ref.id), None)

    def destroy(self, ref: Ref) -> DestroyAck:
        """End the rental's processes, clean up, and release the host as its entry says."""
        seen = self.get(ref)
        if seen is None or seen.tag is None:
            return DestroyAck.MISSING
        release = str(self._hosts[ref.region].get("release") or "none")
        answer = self._run(
            ref.region, "destroy", tag=tag_text(seen.tag, ref.region), rental=ref.id, job=seen.tag.job, release=release
        )
        if text(answer.get("trouble")):
            raise Ambiguous(f"{ref.region}: {answer['trouble']}", provider=self.name, what="destroy")
        return DestroyAck.ACKNOWLEDGED if answer.get("known") is True else DestroyAck.MISSING

    def set_expiry(self, ref: Ref, at: float) -> None:
        raise Invalid("a machine of your own has no timer that could be moved", provider=self.name, what="set_expiry")

    def probe(self, name: str) -> Mapping[str, Any]:
        """What the host has; not a verb of the protocol, but what `host add` writes down."""
        return self._run(name, "probe")

    def _instance(self, name: str, tag: Tag, record: Mapping[str, Any], status: str) -> Instance:
        block, created = self._hosts[name], number(at(record, "at"))
        price, currency = _price(block)
        endpoint = Endpoint(str(block.get("host")), whole(block.get("port")) or 22, str(block.get("user") or "root"))
        return Instance(
            ref=Ref(self.name, self.account, name, tag.rental),
            status=status,
            tag=tag,
            ready=status == HELD,
            endpoint=endpoint if status == HELD else None,
            host_keys=_pinned(host_folder(self.config.home, name) / "known_hosts"),
            machine_id=name,
            created_at=float(created) if created and status == HELD else None,
            hourly=price,
            currency=currency if price else "",
        )

    def _run(self, name: str, verb: str, **ask: str) -> dict[str, Any]:
        """One command on the host. Raises `AuthFailed` or `Ambiguous`."""
        block, folder = self._hosts[name], host_folder(self.config.home, name)
        asked = base64.b64encode(json.dumps({"verb": verb, **ask}).encode()).decode()
        argv = [
            "ssh", "-F", "none", "-T", "-p", str(whole(block.get("port")) or 22), "-i", str(folder / "id_ed25519"),
            "-o", "BatchMode=yes", "-o", "IdentitiesOnly=yes", "-o", f"ConnectTimeout={CONNECT_S}",
            "-o", "StrictHostKeyChecking=yes", "-o", f'UserKnownHostsFile="{folder / "known_hosts"}"',
            "-o", f"HostKeyAlias={name}", "-o", "KexAlgorithms=^curve25519-sha256", "-o", "ServerAliveInterval=5",
            f"{block.get('user') or 'root'}@{block.get('host')}", f"python3 - {asked}",
        ]  # fmt: skip
        program = Path(ssh_host.__file__).read_bytes()
        more = {"provider": self.name, "what": verb}
        try:
            done = subprocess.run(argv, input=program, capture_output=True, timeout=ANSWER_S, check=False)
        except subprocess.TimeoutExpired:
            raise Ambiguous(f"{name} gave no answer to {verb} within {ANSWER_S:.0f} s", **more) from None
        except OSError as error:
            raise Ambiguous(f"this computer cannot run ssh: {error}", **more) from error
        said = done.stderr.decode(errors="replace").strip()
        lines = done.stdout.decode(errors="replace").splitlines()
        found = next((line[14:] for line in reversed(lines) if line.startswith("gpujob-answer ")), None)
        answer = parsed(found) if found is not None else None
        if isinstance(answer, dict):
            return answer
        words = " ".join(said.split())[-300:] or f"exit code {done.returncode}"
        if "Permission denied" in said or "Host key verification failed" in said:
            raise AuthFailed(f"{name} does not let us in: {words}; `gpujob host add {name} ...` anew", **more)
        raise Ambiguous(f"{name} did not answer to {verb}: {words}", **more)


def _price(block: Mapping[str, Any]) -> tuple[Decimal | None, str]:
    """`1.98 CNY` as an amount and a currency; no amount for a machine that costs nothing by the hour."""
    words = str(block.get("price") or "").split()
    price = number(words[0]) if words else None
    return (price if price is not None and price > 0 else None), words[1] if len(words) > 1 else "USD"


def _satisfies(offer: Offer, ask: Ask) -> bool:
    wanted = {(wish.name, wish.count) for wish in ask.gpus} or {("", 0)}
    enough = offer.cpus >= ask.cpus_min and offer.memory >= ask.memory_min and offer.disk >= ask.disk_min
    return (offer.gpu, offer.gpu_count) in wanted and enough and (not ask.regions or offer.region in ask.regions)


def _pinned(path: Path) -> tuple[str, ...]:
    """The host's keys as pinned when it was added."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return ()
    return tuple(" ".join(line.split()[1:3]) for line in lines if len(line.split()) >= 3)

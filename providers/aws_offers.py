"""What AWS rents: its own list of types and zones, spot prices as they are now, on-demand prices by its price list.

Rules
- A zone is a pool: one offer for each type, zone and market, since machines run out and are reclaimed there.
- A spot offer shows the highest price that we would pay, the present price and a fifth, and is rented with that cap:
  the reserve of a job is never passed by a price that rises. The bill is the market's price.
- Only zones in which we could rent are offered: those with a subnet.
- A region that fails or hangs is left out while another answers; if all fail, the first failure is said.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

from providers import aws_prices
from providers.aws_api import NAME, Api
from providers.base import Ask, GpuRow, Offer, is_docker_image
from providers.cards import identify
from providers.errors import Ambiguous, ProviderError
from providers.fields import at, number, parsed, per_hour, rows, text, whole

T = TypeVar("T")

OWN_NAMES = {"A100": "A100-80GB-SXM", "H100": "H100-SXM", "H200": "H200-SXM", "RTXPROSERVER6000": "RTX-PRO-6000"}
GPU_FAMILIES = ("g*", "p*")
CHOICES_MAX = 199  # values of one filter
KEEP_S = 3600.0  # types, zones and subnets change rarely
PRICES_KEEP_S = 7 * 86_400.0
PRICING_REST_S = 3600.0  # a price list that does not answer is left alone for so long
REGIONS_WITHIN_S = 30.0  # a region's answer that offers wait for
OTHERS_S = 5.0  # as soon as one region has offers, the others get so much more time, or what that one took again
SPOT_MARGIN = Decimal("1.2")
DISK_MIN_GB = 100  # the default image alone needs about 75
GIB, MIB = 2**30, 2**20
PRICING_REGION = "us-east-1"


@dataclass(frozen=True)
class Kind:
    """An instance type as AWS describes it; `gpu` is our class, None where it has none or an unknown one."""

    name: str
    cpus: int
    memory: int
    gpu: GpuRow | None
    count: int
    spot: bool


class Catalog:
    """Types, zones and prices of one account."""

    def __init__(self, api: Api, gpus: tuple[GpuRow, ...], home: Path, margin: Decimal, subnets: tuple[str, ...]):
        self._api, self._gpus, self._margin, self._subnets = api, gpus, margin, subnets
        self._file = home / "aws-prices.json"
        self._kept: dict[tuple[str, ...], tuple[float, Any]] = {}
        self._lock = threading.Lock()
        self._pricing_rests_until = 0.0

    def offers(self, ask: Ask, regions: Iterable[str], disk_of: Callable[[str], int]) -> tuple[Offer, ...]:
        """Everything that satisfies `ask` in `regions`, each asked at the same time. `disk_of`: gigabytes there."""
        wanted = [region for region in regions if not ask.regions or region in ask.regions]
        found, failures = _together(wanted, lambda region: self._region(ask, region, disk_of))
        if failures and not found:
            raise failures[0]
        return tuple(offer for region in found for offer in region)

    def zones(self, region: str) -> Mapping[str, tuple[str, str]]:
        """zone -> (subnet, network) that a machine is put into: the account's default ones, or those of the config."""
        return self._keep(("zones", region), lambda: self._read_zones(region))

    def _read_zones(self, region: str) -> Mapping[str, tuple[str, str]]:
        name, values = ("subnet-id", list(self._subnets)) if self._subnets else ("default-for-az", ["true"])
        subnets = self._api.pages(
            region, "offers", "describe_subnets", "Subnets", Filters=[{"Name": name, "Values": values}]
        )
        return {
            text(each.get("AvailabilityZone")): (text(each.get("SubnetId")), text(each.get("VpcId")))
            for each in subnets
        }

    def _region(self, ask: Ask, region: str, disk_of: Callable[[str], int]) -> tuple[Offer, ...]:
        kinds = [kind for kind in self._kinds(region, bool(ask.gpus)) if _fits(kind, ask)]
        if not kinds:
            return ()
        disk = disk_of(region)
        subnets, places = self.zones(region), self._places(region, bool(ask.gpus))
        spots = self._spot_prices(region, kinds) if ask.spot is not False else {}
        listed = self._on_demand(region, kinds) if ask.spot is not True else {}
        more = aws_prices.extras(region, disk)
        found: list[Offer] = []
        for kind in kinds:
            for zone in places.get(kind.name, ()):
                if zone not in subnets:
                    continue
                spot, price = spots.get((kind.name, zone)), listed.get(kind.name)
                if spot is not None:
                    found.append(self._offer(kind, region, zone, disk, per_hour(spot * self._margin + more), True, ask))
                if price is not None:
                    found.append(self._offer(kind, region, zone, disk, per_hour(price + more), False, ask))
        return tuple(found)

    def _offer(self, kind: Kind, region: str, zone: str, disk: int, hourly: Decimal, spot: bool, ask: Ask) -> Offer:
        own = "" if is_docker_image(ask.image) else ask.image
        return Offer(
            provider=NAME, account="default", region=region, key=f"{kind.name}/{zone}", spot=spot, hourly=hourly,
            currency="USD", gpu=kind.gpu.name if kind.gpu else "", gpu_count=kind.count if kind.gpu else 0,
            vram_gb=kind.gpu.vram_gb if kind.gpu else 0, cpus=kind.cpus, memory=kind.memory, disk=disk * 10**9,
            pool=f"{kind.name}/{zone}/{'spot' if spot else 'on-demand'}", min_billing_s=60,
            image=own, container="" if own else ask.image,
        )  # fmt: skip

    # --- AWS's own lists ----------------------------------------------------------------------------------------------

    def _kinds(self, region: str, with_gpu: bool) -> tuple[Kind, ...]:
        return self._keep(("kinds", region, str(with_gpu)), lambda: self._read_kinds(region, with_gpu))

    def _read_kinds(self, region: str, with_gpu: bool) -> tuple[Kind, ...]:
        values = list(GPU_FAMILIES) if with_gpu else [f"{family}.*" for family in aws_prices.CPU_FAMILIES]
        described = self._api.pages(
            region, "offers", "describe_instance_types", "InstanceTypes",
            Filters=[{"Name": "instance-type", "Values": values}],
        )  # fmt: skip
        kinds = (self._kind(each) for each in described)
        return tuple(kind for kind in kinds if kind is not None and (kind.gpu is not None) == with_gpu)

    def _kind(self, each: Mapping[str, Any]) -> Kind | None:
        """None for what our image cannot run on: another architecture, or cards of which it has only a part."""
        if "x86_64" not in (at(each, "ProcessorInfo", "SupportedArchitectures") or ()):
            return None
        cards = rows(at(each, "GpuInfo", "Gpus")) or []
        row, count = None, 0
        if cards:
            card, count = cards[0], sum(whole(one.get("Count")) for one in cards)
            size = whole(at(card, "MemoryInfo", "SizeInMiB")) / 1024
            label = text(card.get("Name"))
            for spelling in (label, f"{text(card.get('Manufacturer'))} {label}"):
                row = row or identify(spelling, size, self._gpus, OWN_NAMES)
            if row is None or len(cards) > 1 or count < 1:
                return None
        return Kind(
            text(each.get("InstanceType")),
            whole(at(each, "VCpuInfo", "DefaultVCpus")),
            whole(at(each, "MemoryInfo", "SizeInMiB")) * MIB,
            row,
            count,
            "spot" in (each.get("SupportedUsageClasses") or ()),
        )

    def _places(self, region: str, with_gpu: bool) -> Mapping[str, tuple[str, ...]]:
        return self._keep(("places", region, str(with_gpu)), lambda: self._read_places(region, with_gpu))

    def _read_places(self, region: str, with_gpu: bool) -> Mapping[str, tuple[str, ...]]:
        values = list(GPU_FAMILIES) if with_gpu else [f"{family}.*" for family in aws_prices.CPU_FAMILIES]
        found: dict[str, tuple[str, ...]] = {}
        for each in self._api.pages(
            region, "offers", "describe_instance_type_offerings", "InstanceTypeOfferings",
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": values}],
        ):  # fmt: skip
            kind = text(each.get("InstanceType"))
            found[kind] = (*found.get(kind, ()), text(each.get("Location")))
        return found

    # --- prices -------------------------------------------------------------------------------------------------------

    def _spot_prices(self, region: str, kinds: list[Kind]) -> Mapping[tuple[str, str], Decimal]:
        """(type, zone) -> the newest price."""
        names = [kind.name for kind in kinds if kind.spot][:CHOICES_MAX]
        if not names:
            return {}
        newest: dict[tuple[str, str], tuple[float, Decimal]] = {}
        for each in self._api.pages(
            region, "offers", "describe_spot_price_history", "SpotPriceHistory", InstanceTypes=names,
            ProductDescriptions=["Linux/UNIX"], StartTime=datetime.now(UTC),
        ):  # fmt: skip
            price, when = number(each.get("SpotPrice")), each.get("Timestamp")
            place = text(each.get("InstanceType")), text(each.get("AvailabilityZone"))
            moment = when.timestamp() if isinstance(when, datetime) else 0.0
            if price is not None and price > 0 and (place not in newest or moment > newest[place][0]):
                newest[place] = (moment, price)
        return {place: price for place, (_, price) in newest.items()}

    def _on_demand(self, region: str, kinds: list[Kind]) -> Mapping[str, Decimal]:
        """type -> price: of AWS's list, this week's answer of it, or the table of `aws_prices`."""
        known, now = self._kept_prices(region), time.time()
        fresh = {name: price for name, (price, when) in known.items() if now - when < PRICES_KEEP_S}
        asked: dict[str, Decimal] = {}
        for kind in kinds:
            if kind.name not in fresh and time.monotonic() >= self._pricing_rests_until:
                try:
                    price = self._listed_price(region, kind.name)
                except ProviderError:  # without the right, or down: the stand-ins are good enough to plan by
                    self._pricing_rests_until = time.monotonic() + PRICING_REST_S
                    break
                if price is not None:
                    asked[kind.name] = price
        if asked:
            self._keep_prices(region, asked, now)
        stand_in = aws_prices.ON_DEMAND if region in aws_prices.REGIONS else {}
        older = {name: price for name, (price, _) in known.items()}
        every = {**stand_in, **older, **asked}
        return {kind.name: every[kind.name] for kind in kinds if kind.name in every}

    def _listed_price(self, region: str, kind: str) -> Decimal | None:
        match = {
            "instanceType": kind, "regionCode": region, "operatingSystem": "Linux", "tenancy": "Shared",
            "preInstalledSw": "NA", "capacitystatus": "Used",
        }  # fmt: skip
        answer = self._api.call(
            PRICING_REGION, "prices", "get_products", service="pricing", ServiceCode="AmazonEC2",
            Filters=[{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in match.items()],
        )  # fmt: skip
        found = []
        for product in answer.get("PriceList") or ():
            terms = at(parsed(text(product)), "terms", "OnDemand")
            for term in terms.values() if isinstance(terms, Mapping) else ():
                dimensions = at(term, "priceDimensions")
                for dimension in dimensions.values() if isinstance(dimensions, Mapping) else ():
                    price = number(at(dimension, "pricePerUnit", "USD"))
                    if price is not None and price > 0 and text(at(dimension, "unit")) == "Hrs":
                        found.append(price)
        return max(found, default=None)

    def _kept_prices(self, region: str) -> Mapping[str, tuple[Decimal, float]]:
        found = {}
        for name, row in self._kept_file().get(region, {}).items():
            price, when = number(at(row, "price")), number(at(row, "at"))
            if price is not None and price > 0 and when is not None:
                found[name] = (price, float(when))
        return found

    def _kept_file(self) -> Mapping[str, Mapping[str, Any]]:
        """region -> type -> row; whatever of the file is damaged was never kept."""
        try:
            kept = parsed(self._file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        known = kept if isinstance(kept, Mapping) else {}
        return {region: types for region, types in known.items() if isinstance(types, Mapping)}

    def _keep_prices(self, region: str, prices: Mapping[str, Decimal], now: float) -> None:
        with self._lock:
            kept = dict(self._kept_file())
            new = {name: {"price": str(price), "at": now} for name, price in prices.items()}
            kept[region] = {**kept.get(region, {}), **new}
            try:
                self._file.parent.mkdir(parents=True, exist_ok=True)
                scratch = self._file.with_suffix(".new")
                scratch.write_text(json.dumps(kept, default=str))
                scratch.replace(self._file)
            except OSError:  # it only saves a question next time
                return

    def _keep(self, key: tuple[str, ...], read: Callable[[], T]) -> T:
        with self._lock:
            kept = self._kept.get(key)
        if kept is not None and time.monotonic() - kept[0] < KEEP_S:
            return kept[1]  # type: ignore[no-any-return]
        value = read()
        with self._lock:
            self._kept[key] = (time.monotonic(), value)
        return value


def _fits(kind: Kind, ask: Ask) -> bool:
    if kind.cpus < ask.cpus_min or kind.memory < ask.memory_min:
        return False
    if not ask.gpus:
        return kind.gpu is None
    return kind.gpu is not None and any((wish.name, wish.count) == (kind.gpu.name, kind.count) for wish in ask.gpus)


def _together(
    regions: list[str], ask: Callable[[str], tuple[Offer, ...]]
) -> tuple[list[tuple[Offer, ...]], list[ProviderError]]:
    """One thread a region: a hung one holds up neither the answer for long nor the end of the process."""
    futures: list[Future[tuple[Offer, ...]]] = []
    for region in regions:
        future: Future[tuple[Offer, ...]] = Future()
        futures.append(future)
        threading.Thread(target=_run, args=(future, ask, region), daemon=True).start()
    began = time.monotonic()
    pending = set(futures)
    while pending and not any(map(_answered, futures)) and (left := began + REGIONS_WITHIN_S - time.monotonic()) > 0:
        pending = wait(pending, left, FIRST_COMPLETED).not_done
    if any(map(_answered, futures)):
        wait(pending, max(OTHERS_S, time.monotonic() - began))
    found, failures = [], []
    for region, future in zip(regions, futures, strict=True):
        try:
            found.append(future.result(0))
        except ProviderError as error:
            failures.append(error)
        except TimeoutError:
            failures.append(Ambiguous(f"aws {region} does not answer to offers", provider=NAME, what="offers"))
    return found, failures


def _answered(future: Future[tuple[Offer, ...]]) -> bool:
    return future.done() and future.exception() is None


def _run(future: Future[tuple[Offer, ...]], ask: Callable[[str], tuple[Offer, ...]], region: str) -> None:
    try:
        future.set_result(ask(region))
    except BaseException as error:  # handed to whoever waits for it
        future.set_exception(error)

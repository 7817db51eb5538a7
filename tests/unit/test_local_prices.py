"""Offers of `local`: every class has a price, an ask is satisfied or finds nothing, a key means one machine."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from providers.base import Ask, GpuRow, GpuWish, Offer
from providers.local_machine import prices
from providers.local_machine.prices import Host

GB = 10**9
TABLE = (GpuRow("RTX-4090", 24), GpuRow("A100-80GB-SXM", 80), GpuRow("A100-40GB", 40), GpuRow("X9-ODD", 100))
HOST = Host(cpus=2, memory=8 * GB, disk=50 * GB)


def offered(ask: Ask, there: Host = HOST, regions: tuple[str, ...] = ("here",)) -> list[Offer]:
    return list(prices.offers(ask, TABLE, regions, there, provider="local", account="local"))


def wish(name: str, count: int = 1) -> GpuWish:
    return GpuWish(name, next(row.vram_gb for row in TABLE if row.name == name), count)


@pytest.mark.parametrize(
    ("name", "price"),
    [
        ("RTX-4090", "0.60"),
        ("A100-80GB-SXM", "1.60"),
        ("A100-40GB", "1.30"),
        ("X9-ODD", "2.0000"),
    ],
)
def test_a_class_has_its_own_price_or_its_familys_or_one_by_memory(name: str, price: str) -> None:
    assert prices.per_gpu(wish(name)) == Decimal(price)


def test_a_machine_costs_its_cards_and_spot_a_stated_fraction() -> None:
    on_demand, spot = offered(Ask(gpus=(wish("RTX-4090", 4),)))
    assert (on_demand.spot, on_demand.hourly) == (False, Decimal("2.40"))
    assert (spot.spot, spot.hourly) == (True, Decimal("2.40") * prices.SPOT_FRACTION)
    assert (spot.gpu, spot.gpu_count, spot.vram_gb, spot.currency) == ("RTX-4090", 4, 24, "USD")
    assert (spot.billing_step_s, spot.min_billing_s) == (1, 0)


def test_all_wishes_are_offered_and_nothing_else() -> None:
    ask = Ask(gpus=(wish("RTX-4090", 2), wish("A100-40GB"), wish("RTX-4090", 2)), spot=False)
    assert [offer.key for offer in offered(ask)] == ["RTX-4090:2:on-demand", "A100-40GB:1:on-demand"]


def test_without_a_gpu_it_is_a_cpu_machine() -> None:
    (only,) = offered(Ask(spot=True))
    assert (only.key, only.gpu, only.gpu_count, only.stand_in) == ("cpu:spot", "", 0, False)
    assert (only.cpus, only.memory, only.disk) == (2, 8 * GB, 50 * GB)


@pytest.mark.parametrize(
    "ask",
    [
        Ask(cpus_min=3),
        Ask(memory_min=9 * GB),
        Ask(disk_min=51 * GB),
        Ask(regions=("elsewhere",)),
        Ask(gpus=(GpuWish("NONE-SUCH", 24, 1),)),
        Ask(gpus=(GpuWish("RTX-4090", 24, 9),)),
        Ask(gpus=(GpuWish("RTX-4090", 24, 0),)),
    ],
)
def test_what_the_host_cannot_be_is_not_offered(ask: Ask) -> None:
    assert offered(ask) == []


def test_what_the_host_just_is_is_offered() -> None:
    assert len(offered(Ask(cpus_min=2, memory_min=8 * GB, disk_min=50 * GB, regions=("here",)))) == 2


def test_every_region_has_every_machine_in_a_pool_of_its_own() -> None:
    found = offered(Ask(), regions=("here", "there"))
    assert len(found) == len({offer.pool for offer in found}) == 4
    assert {offer.region for offer in offered(Ask(regions=("there",)), regions=("here", "there"))} == {"there"}


def test_a_gpu_is_a_stand_in_unless_the_host_has_enough_of_it() -> None:
    there = Host(2, 8 * GB, 50 * GB, gpus=("NVIDIA GeForce RTX 4090",))
    for count, imitated in ((1, False), (2, True)):
        assert {o.stand_in for o in offered(Ask(gpus=(wish("RTX-4090", count),)), there)} == {imitated}
    sxm = Host(2, 8 * GB, 50 * GB, gpus=("NVIDIA A100-SXM4-80GB",))
    assert prices.has(sxm, "A100-80GB-SXM", 1)
    assert not prices.has(sxm, "A100-40GB", 1)


@pytest.mark.parametrize("count", [1, 8])
def test_a_key_names_the_offered_machine(count: int) -> None:
    for offer in offered(Ask(gpus=(wish("A100-80GB-SXM", count),))):
        assert prices.wish_of(offer.key, TABLE) == (wish("A100-80GB-SXM", count), offer.spot)
    assert prices.wish_of("cpu:spot", TABLE) == (None, True)


@pytest.mark.parametrize(
    "key", ["", "cpu", "cpu:free", "RTX-4090:spot", "RTX-4090:9:spot", "RTX-4090:x:spot", "NONE:1:spot"]
)
def test_a_key_that_was_never_offered_is_none(key: str) -> None:
    assert prices.wish_of(key, TABLE) is None


def test_the_host_is_read_where_the_home_does_not_exist_yet(tmp_path: Path) -> None:
    there = prices.host(tmp_path / "not/yet")
    assert there.cpus >= 1
    assert there.memory > 100_000_000
    assert there.disk > 0

"""Vast's own ways: bids, outbid machines, contracts in error bodies, pages of 25, a quota of searches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from fake_vast import FakeVast

from orchestrator.agent.hook import boot_hook
from providers.base import Ask, Balance, Boot, DestroyAck, GpuWish, Instance, Tag
from providers.errors import Ambiguous, NoCapacity, NoFunds, RateLimited
from providers.vast import VastProvider

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX x"
ONE_4090 = GpuWish("RTX-4090", 24, 1)
TAG = Tag("contract", "rental-1", "job", "me")


@pytest.fixture
def company() -> Iterator[FakeVast]:
    with FakeVast() as company:
        yield company


@pytest.fixture
def vast(company: FakeVast, tmp_path: Path) -> VastProvider:
    return VastProvider(company.config(tmp_path))


def rent(vast: VastProvider, spot: bool = True, tag: Tag = TAG) -> Instance:
    offer = min(vast.offers(Ask(gpus=(ONE_4090,), spot=spot)), key=lambda offer: offer.hourly)
    return vast.create(offer, tag, time.time() + 900, Boot("true", PUBLIC))


def test_an_offer_of_a_bid_costs_what_is_bid_and_its_disk(company: FakeVast, vast: VastProvider) -> None:
    (offer,) = vast.offers(Ask(gpus=(ONE_4090,), spot=True, disk_min=100 * 10**9))
    assert offer.key == "101:100:0.150"  # the least bid of 0.12 and a quarter
    assert offer.hourly == Decimal("0.1706")  # 0.15 and 100 GB at 0.15 a month, rounded up
    assert (offer.disk, offer.pool, offer.gpu) == (100 * 10**9, "machine 9101", "RTX-4090")
    assert offer.in_per_gb == Decimal("0.002")
    made = vast.create(offer, TAG, time.time() + 900, Boot("true", PUBLIC))
    asked = company.contracts[int(made.ref.id)].asked
    assert (asked["price"], asked["disk"]) == (0.15, 100)
    assert made.hourly == offer.hourly


def test_on_demand_sends_no_bid(company: FakeVast, vast: VastProvider) -> None:
    made = rent(vast, spot=False)
    assert "price" not in company.contracts[int(made.ref.id)].asked
    both = vast.offers(Ask(gpus=(ONE_4090,)))
    assert sorted((offer.spot, offer.key) for offer in both) == [(False, "101:40:"), (True, "101:40:0.150")]


def test_a_card_with_twice_the_memory_is_another_card(vast: VastProvider) -> None:
    names = {offer.raw["machine_id"] for offer in vast.offers(Ask(gpus=(ONE_4090,)))}
    assert names == {"9101"}
    assert vast.offers(Ask(gpus=(GpuWish("RTX-4090-48GB", 48, 1),))) == ()  # not in the table of this test


def test_settings_choose_countries_and_the_bid(company: FakeVast, tmp_path: Path) -> None:
    ask = Ask(gpus=(ONE_4090, GpuWish("A100-80GB-SXM", 80, 1)), spot=True)
    abroad = VastProvider(company.config(tmp_path, regions=["CA"], bid_margin="2"))
    (offer,) = abroad.offers(ask)
    assert (offer.region, offer.key, offer.gpu) == ("CA", "104:40:0.900", "A100-80GB-SXM")
    made = abroad.create(offer, TAG, time.time() + 900, Boot("true", PUBLIC))
    assert [i.ref for i in abroad.list("CA").instances] == [made.ref]
    assert VastProvider(company.config(tmp_path)).list("global").instances == ()


def test_outbid_is_stopped_silently_and_never_dead(company: FakeVast, vast: VastProvider) -> None:
    made = rent(vast)
    company.outbid(int(made.ref.id))
    seen = vast.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready) == ("stopped", False)
    assert seen.status not in vast.caps.dead_statuses
    assert seen.notice is not None
    assert (seen.notice.action, seen.notice.at <= time.time()) == ("stop", True)
    assert vast.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert (vast.get(made.ref), company.contracts) == (None, {})


def test_a_machine_that_is_only_loading_is_no_reclaim(company: FakeVast, vast: VastProvider) -> None:
    company.boot_s = 60.0
    made = rent(vast)
    seen = vast.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.notice) == ("provisioning", False, None)
    company.advance(61)
    later = vast.get(made.ref)
    assert later is not None
    assert later.ready


def test_a_contract_in_an_error_body_is_destroyed_before_the_refusal_is_said(
    company: FakeVast, vast: VastProvider
) -> None:
    company.fault("PUT", "/asks/", "answer-after", status=400,
                  body={"success": False, "error": "invalid_args", "msg": NO_ASK, "new_contract": 5001})  # fmt: skip
    with pytest.raises(NoCapacity):
        rent(vast)
    assert company.contracts == {}
    assert company.sent("DELETE", "/instances/5001") == 1


NO_ASK = "error 404/3603: no_such_ask Instance type by id 101 is not available."


def test_a_contract_in_an_error_body_that_cannot_be_destroyed_leaves_the_create_open(
    company: FakeVast, vast: VastProvider
) -> None:
    company.fault("PUT", "/asks/", "answer-after", status=410,
                  body={"success": False, "error": "no_such_ask", "msg": NO_ASK, "new_contract": 5001})  # fmt: skip
    company.fault("DELETE", "/instances/", "refuse", status=500, body={})
    with pytest.raises(Ambiguous, match="contract 5001"):
        rent(vast)
    assert [i.tag for i in vast.list("global").instances] == [TAG]


def test_an_offer_that_is_gone_is_capacity_and_no_credit_is_funds(company: FakeVast, vast: VastProvider) -> None:
    (offer,) = vast.offers(Ask(gpus=(ONE_4090,), spot=True))
    company.taken.add(101)
    with pytest.raises(NoCapacity, match="no_such_ask"):
        vast.create(offer, TAG, 2e9, Boot("true", PUBLIC))
    company.taken.clear()
    company.credit = 0.0
    with pytest.raises(NoFunds, match="lacks credit"):
        vast.create(offer, TAG, 2e9, Boot("true", PUBLIC))


def test_a_listing_has_all_pages(company: FakeVast, vast: VastProvider) -> None:
    company.add_strangers(60)
    made = rent(vast)
    before = company.sent("GET", "/api/v1/instances")
    assert [i.ref.id for i in vast.list("global").instances] == [made.ref.id]
    assert company.sent("GET", "/api/v1/instances") - before == 3
    assert len(vast.list_all("global").instances) == 61


def test_a_page_that_is_missing_is_no_listing(company: FakeVast, vast: VastProvider) -> None:
    company.add_strangers(30)
    rent(vast)
    short = {"success": True, "instances_found": 25, "total_instances": 31, "instances": [], "next_token": None}
    company.fault("GET", "/api/v1/instances", "refuse", status=200, body=short)
    with pytest.raises(Ambiguous, match="0 of 31 machines"):
        vast.list("global")
    company.fault("GET", "/api/v1/instances", "refuse", status=200, times=-1,
                  body={"instances": [], "next_token": "the-same-for-ever"})  # fmt: skip
    with pytest.raises(Ambiguous):
        vast.list("global")


def test_a_used_up_search_quota_is_waited_for_and_stops_nothing_else(company: FakeVast, vast: VastProvider) -> None:
    made = rent(vast)
    company.searches_left = 0
    with pytest.raises(RateLimited) as first:
        vast.offers(Ask(gpus=(ONE_4090,)))
    assert first.value.retry_after_s is not None
    assert 3500 < first.value.retry_after_s <= 3600
    searches = company.sent("POST", "/bundles")
    with pytest.raises(RateLimited):
        vast.offers(Ask(gpus=(ONE_4090,)))
    assert company.sent("POST", "/bundles") == searches
    assert len(vast.list("global").instances) == 1
    assert vast.destroy(made.ref) is DestroyAck.ACKNOWLEDGED


def test_one_ask_is_one_search_for_each_memory_size_and_market(company: FakeVast, vast: VastProvider) -> None:
    wishes = (ONE_4090, GpuWish("RTX-4090", 24, 2), GpuWish("H100-SXM", 80, 1), GpuWish("A100-80GB-SXM", 80, 1))
    offers = vast.offers(Ask(gpus=wishes))
    assert company.sent("POST", "/bundles") == 4
    assert {(offer.gpu, offer.gpu_count) for offer in offers} == {(wish.name, wish.count) for wish in wishes}


def test_the_address_is_read_anew_and_falls_back_to_the_proxy(company: FakeVast, vast: VastProvider) -> None:
    made = rent(vast)
    direct = vast.get(made.ref)
    assert direct is not None
    assert direct.endpoint is not None
    assert (direct.endpoint.host, direct.endpoint.user) == ("127.0.0.1", "root")
    body = {
        "instances": {"id": int(made.ref.id), "actual_status": "running", "ssh_host": "ssh9.example", "ssh_port": 10882}
    }
    company.fault("GET", "/v0/instances/", "refuse", status=200, body=body)
    moved = vast.get(made.ref)
    assert moved is not None
    assert moved.endpoint is not None
    assert (moved.endpoint.host, moved.endpoint.port) == ("ssh9.example", 10882)


def test_a_status_that_nobody_knows_survives(company: FakeVast, vast: VastProvider) -> None:
    made = rent(vast)
    company.contracts[int(made.ref.id)].status = "hibernating"
    seen = vast.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.notice) == ("hibernating", False, None)


def test_the_start_command_fits_with_the_real_boot_hook(company: FakeVast, vast: VastProvider) -> None:
    hook = boot_hook(nonce="n" * 40, end=2e9, grace_s=120, action="poweroff", rental="r" * 40)
    (offer,) = vast.offers(Ask(gpus=(ONE_4090,), spot=True))
    made = vast.create(offer, TAG, time.time() + 900, Boot(hook, PUBLIC + "A" * 60))
    contract = company.contracts[int(made.ref.id)]
    assert len(contract.asked["onstart"]) < 4048
    assert company.machines.started[contract.handle] == (hook, PUBLIC + "A" * 60)  # type: ignore[attr-defined]
    assert company.url in contract.asked["onstart"]


def test_a_success_that_names_no_contract_is_open(company: FakeVast, vast: VastProvider) -> None:
    company.fault("PUT", "/asks/", "answer-after", status=200, body={"success": True})
    with pytest.raises(Ambiguous):
        rent(vast)
    assert len(vast.list("global").instances) == 1


def test_the_balance_is_what_the_account_says(company: FakeVast, vast: VastProvider) -> None:
    company.credit = 12.5
    assert vast.balance() == Balance(Decimal("12.5"), "USD")


@pytest.mark.parametrize(
    ("sizes", "searches"),
    [((24,), 2), ((24, 80), 4), ((24, 48, 80), 6), ((10, 12, 16, 24, 32, 40, 48, 80, 94, 141, 192), 6)],
)
def test_any_number_of_cards_takes_few_of_the_days_searches(
    company: FakeVast, vast: VastProvider, sizes: tuple[int, ...], searches: int
) -> None:
    known = (ONE_4090, GpuWish("A100-80GB-SXM", 80, 1))
    wishes = tuple(next((k for k in known if k.vram_gb == size), GpuWish(f"C-{size}", size, 1)) for size in sizes)
    found = vast.offers(Ask(gpus=wishes))
    assert company.sent("POST", "/bundles") == searches
    assert {offer.gpu for offer in found} == {wish.name for wish in wishes} & {wish.name for wish in known}

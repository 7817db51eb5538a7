"""AutoDL's own ways: power off before release, two names for a place, prices that nobody tells, HTTP 200 for errors."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from fake_autodl import PASSWORD, FakeAutoDl, refusal, start_of

from jobspecs.gpu_table import GPU_CLASSES
from orchestrator.agent.hook import boot_hook
from providers.autodl import IMAGE, SPECS, AutoDlProvider
from providers.base import Ask, Balance, Boot, DestroyAck, GpuRow, GpuWish, Instance, Offer, Ref, Tag
from providers.cards import identify
from providers.errors import AccountGate, Ambiguous, Invalid, NoCapacity, NoFunds

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX x"
ONE = GpuWish("RTX-4090D", 24, 1)
TAG = Tag("contract", "rental-1", "job", "me")
TABLE = tuple(GpuRow(gpu.name, gpu.vram_gb, gpu.spellings) for gpu in GPU_CLASSES)
OFF, RELEASE = "/pro/power_off$", "/pro/release$"


@pytest.fixture
def company() -> Iterator[FakeAutoDl]:
    with FakeAutoDl() as company:
        yield company


@pytest.fixture
def autodl(company: FakeAutoDl, tmp_path: Path) -> AutoDlProvider:
    return AutoDlProvider(company.config(tmp_path))


def rent(autodl: AutoDlProvider, hook: str = "true", tag: Tag = TAG) -> Instance:
    offer = autodl.offers(Ask(gpus=(ONE,)))[0]
    return autodl.create(offer, tag, time.time() + 900, Boot(hook, PUBLIC))


# --- offers -----------------------------------------------------------------------------------------------------------


def test_an_offer_costs_what_the_config_says_of_one_card(autodl: AutoDlProvider) -> None:
    (two,) = autodl.offers(Ask(gpus=(GpuWish("RTX-4090D", 24, 2),)))
    assert (two.hourly, two.currency, two.gpu_count, two.vram_gb) == (Decimal("3.76"), "CNY", 2, 24)
    assert (two.region, two.spot, two.image, two.disk) == ("global", False, IMAGE, 80 * 10**9)
    (own,) = autodl.offers(Ask(gpus=(GpuWish("H800", 80, 1),)))
    assert (own.hourly, own.key) == (Decimal("8.88"), "h800/1/0")
    assert autodl.offers(Ask(gpus=(GpuWish("RTX-4090D", 24, 5),))) == ()
    assert autodl.offers(Ask(gpus=(ONE,), spot=True)) == ()


def test_what_its_market_page_asks_by_the_week_comes_along(company: FakeAutoDl, tmp_path: Path) -> None:
    packages = {"RTX-4090D": {"week": "290 CNY"}}
    autodl = AutoDlProvider(company.config(tmp_path, packages=packages))
    assert [offer.raw["packages"] for offer in autodl.offers(Ask(gpus=(ONE,)))] == [{"week": "290 CNY"}]


def test_without_a_price_the_config_is_asked_for_it(company: FakeAutoDl, tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"prices: \{4090D: 2\.98\}"):
        AutoDlProvider(company.config(tmp_path, prices={"v-48g": 9})).offers(Ask(gpus=(ONE,)))
    with pytest.raises(Invalid, match="no price"):
        AutoDlProvider(company.config(tmp_path, prices={"4090D": "cheap"})).offers(Ask(gpus=(ONE,)))


def test_a_machine_that_costs_more_than_the_config_says_corrects_the_next_offer(
    company: FakeAutoDl, tmp_path: Path
) -> None:
    autodl = AutoDlProvider(company.config(tmp_path, prices={"4090D": "1.50"}))
    made = rent(autodl)
    seen = autodl.get(made.ref)
    assert seen is not None
    assert (seen.hourly, seen.currency) == (Decimal("1.88"), "CNY")
    assert autodl.offers(Ask(gpus=(ONE,)))[0].hourly == Decimal("1.88")


def test_stock_counts_other_machines_and_decides_nothing(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.empty.add("4090D")
    (offer,) = autodl.offers(Ask(gpus=(ONE,)))
    assert offer.raw["idle"] == "0"
    with pytest.raises(NoCapacity, match="暂无库存"):
        rent(autodl)
    assert company.held == []


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (Ask(gpus=(ONE,), image="pytorch/pytorch:2.4"), "starts its own images only"),
        (Ask(gpus=(ONE,), cpus_min=4), "how many CPUs"),
        (Ask(gpus=(ONE,), disk_min=81 * 10**9), "80 GB of disk at most"),
    ],
)
def test_what_it_cannot_promise_is_refused_before_anything_is_sent(
    company: FakeAutoDl, autodl: AutoDlProvider, ask: Ask, words: str
) -> None:
    with pytest.raises(Invalid, match=words):
        autodl.offers(ask)
    assert company.calls == []


def test_a_system_disk_can_be_enlarged_and_then_bills_on(company: FakeAutoDl, tmp_path: Path) -> None:
    autodl = AutoDlProvider(company.config(tmp_path, data_mount=""))
    (offer,) = autodl.offers(Ask(gpus=(ONE,), disk_min=230 * 10**9))
    assert (offer.key, offer.hourly) == ("4090D/1/200", Decimal("1.88") + Decimal("0.055"))
    assert (autodl.caps.self_end, autodl.caps.stop_bills, autodl.caps.data_mount) == ("leaves_disk", "disk", "")
    made = autodl.create(offer, TAG, time.time() + 900, Boot("true", PUBLIC))
    assert company.boxes[made.ref.id].asked["expand_system_disk_by_gb"] == 200


# --- places -----------------------------------------------------------------------------------------------------------


def test_a_place_has_one_name_for_creates_and_another_in_listings(company: FakeAutoDl, tmp_path: Path) -> None:
    autodl = AutoDlProvider(company.config(tmp_path, regions=["bj-B2", "westDC3"]))
    assert autodl.regions() == ("beijingDC2", "westDC3")
    (offer,) = autodl.offers(Ask(gpus=(ONE,), regions=("bj-B2",)))
    made = autodl.create(offer, TAG, time.time() + 900, Boot("true", PUBLIC))
    assert company.boxes[made.ref.id].asked["data_center_list"] == ["beijingDC2"]
    (listed,) = autodl.list("beijingDC2").instances
    assert (listed.ref, listed.raw["region"], listed.raw["region_sign"]) == (made.ref, "beijingDC2", "bj-B2")
    assert autodl.list("westDC3").instances == ()
    company.boxes[made.ref.id].place = "westDC3"  # the company moved it: the tag decides
    (moved,) = autodl.list("beijingDC2").instances
    assert (moved.ref.region, moved.raw["region"]) == ("beijingDC2", "westDC3")


def test_a_place_that_makes_no_machines_is_told_as_it_is(company: FakeAutoDl, tmp_path: Path) -> None:
    autodl = AutoDlProvider(company.config(tmp_path, regions=["neimengDC1"]))
    assert autodl.offers(Ask(gpus=(ONE,))) == ()
    offer = Offer("autodl", "default", "neimengDC1", "4090D/1/0", False, Decimal(1), "CNY")
    with pytest.raises(Invalid, match="请求参数错误"):
        autodl.create(offer, TAG, 2e9, Boot("true", PUBLIC))


# --- destroy ----------------------------------------------------------------------------------------------------------


def test_a_destroy_powers_off_and_releases_as_far_as_it_gets(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.off_s, company.release_s = 20.0, 10.0
    made = rent(autodl)
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED  # it shuts down: no second order, which would be refused
    seen = autodl.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.status in autodl.caps.dead_statuses) == ("shutting_down", False, False)
    assert (company.sent("POST", OFF), company.sent("POST", RELEASE)) == (1, 0)
    company.advance(21)
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert (company.sent("POST", OFF), company.sent("POST", RELEASE), company.held) == (1, 1, [])
    company.advance(11)
    assert autodl.destroy(made.ref) is DestroyAck.MISSING
    assert autodl.get(made.ref) is None
    assert autodl.list("global").instances == ()


def test_an_order_that_a_machine_coming_up_ignores_is_given_again(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.boot_s = 60.0
    made = rent(autodl)
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert company.held == [made.ref.id]
    company.advance(61)
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert (company.sent("POST", OFF), company.held) == (2, [])


def test_a_power_off_that_is_refused_while_it_runs_settles_nothing(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    made = rent(autodl)
    company.fault("POST", OFF, "refuse", status=200, body=refusal("InternalError", "系统繁忙").body)
    with pytest.raises(Ambiguous, match="系统繁忙"):
        autodl.destroy(made.ref)
    assert company.held == [made.ref.id]
    autodl.destroy(made.ref)
    assert company.held == []


def test_a_machine_in_an_unknown_state_is_released_all_the_same(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    made = rent(autodl)
    company.boxes[made.ref.id].status = "hibernated"
    seen = autodl.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.notice, seen.tag) == ("hibernated", False, None, TAG)
    with pytest.raises(Ambiguous, match="请先关机"):
        autodl.destroy(made.ref)
    company.stop(made.ref.id)
    assert autodl.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert company.held == []


def test_a_machine_that_is_off_is_a_reclaim_that_is_over_and_not_dead(
    company: FakeAutoDl, autodl: AutoDlProvider
) -> None:
    made = rent(autodl)
    company.stop(made.ref.id)
    seen = autodl.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.endpoint) == ("shutdown", False, None)
    assert seen.notice is not None
    assert seen.notice.at <= time.time()
    assert seen.status not in autodl.caps.dead_statuses


# --- machines ---------------------------------------------------------------------------------------------------------


def test_the_hook_the_key_and_the_image_reach_the_machine_without_a_quote(
    company: FakeAutoDl, autodl: AutoDlProvider
) -> None:
    hook = boot_hook(nonce="n" * 40, end=2e9, grace_s=120, action="poweroff", rental="rental-1")
    made = rent(autodl, hook)
    asked = company.boxes[made.ref.id].asked
    assert (asked["image_uuid"], asked["cuda_v_from"], asked["req_gpu_amount"]) == (IMAGE, 118, 1)
    assert "data_center_list" not in asked
    assert not set(asked["start_command"]) & set("'\"`$\\\n")
    started = company.machines.started[company.boxes[made.ref.id].handle]  # type: ignore[attr-defined]
    assert started == (hook, PUBLIC)
    script = start_of(asked["start_command"])
    assert "exec /usr/bin/shutdown -h now" in script
    assert script.index("autodl-tmp") < script.index("boot.sh") < script.index("apt-get")


def test_newer_cards_ask_for_newer_drivers(company: FakeAutoDl, tmp_path: Path) -> None:
    assert AutoDlProvider(company.config(tmp_path))._cuda("5090-p") == 128
    assert AutoDlProvider(company.config(tmp_path, cuda="12.4"))._cuda("5090-p") == 124


def test_a_machine_is_ready_with_its_address_and_its_host(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.boot_s = 30.0
    made = rent(autodl)
    early = autodl.get(made.ref)
    assert early is not None
    assert (early.status, early.ready, early.endpoint, early.notice) == ("creating", False, None, None)
    company.advance(31)
    autodl.list("global")
    later = autodl.get(made.ref)
    assert later is not None
    assert later.endpoint is not None
    assert (later.ready, later.endpoint.host, later.endpoint.user) == (True, "127.0.0.1", "root")
    assert later.machine_id == "host-beijingDC2"
    assert PASSWORD not in repr(later)


def test_a_password_is_in_no_error(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    made = rent(autodl)
    body = {"code": "success?", "msg": "", "data": {"root_password": PASSWORD}}
    for said in (body, {key: value for key, value in body.items() if key != "code"}):
        company.fault("GET", "/snapshot$", "refuse", status=200, body=said)
        with pytest.raises(Ambiguous) as problem:
            autodl.get(made.ref)
        assert PASSWORD not in f"{problem.value} {problem.value.evidence}"


def test_a_listing_takes_every_page_or_fails(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.page_max = 2
    made = {rent(autodl, tag=Tag("contract", f"rental-{n}", "job", "me")).ref.id for n in range(5)}
    before = company.sent("POST", "/pro/list$")
    assert {i.ref.id for i in autodl.list("global").instances} == made
    assert company.sent("POST", "/pro/list$") - before == 3
    rows = [{"uuid": each, "name": "x", "status": "running"} for each in sorted(made)[:2]]
    short = {"code": "Success", "msg": "", "data": {"list": rows, "max_page": 1, "result_total": 5}}
    company.fault("POST", "/pro/list$", "refuse", status=200, body=short)
    with pytest.raises(Ambiguous, match="2 of 5"):
        autodl.list("global")


def test_strangers_and_saved_images_are_shown_to_an_audit_and_to_nothing_else(
    company: FakeAutoDl, autodl: AutoDlProvider
) -> None:
    made = rent(autodl)
    company.boxes[made.ref.id].asked["instance_name"] = "by hand"
    company.images.append({"image_uuid": "image-1", "name": "mine", "status": "finished", "image_size": 10**10})
    assert autodl.list("global") == AutoDlProvider(autodl.config).list("global")
    assert autodl.list("global").instances == ()
    seen = autodl.list_all("global")
    assert [(i.ref.id, i.tag) for i in seen.instances] == [(made.ref.id, None)]
    assert [(o.ref.id, o.ref.kind, o.tag) for o in seen.others] == [("image-1", "snapshot", None)]
    with pytest.raises(Invalid, match="console alone"):
        autodl.destroy(seen.others[0].ref)
    assert company.sent("POST", RELEASE) == 0


# --- account ----------------------------------------------------------------------------------------------------------


def test_the_balance_is_yuan(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.assets = 12_345
    assert autodl.balance() == Balance(Decimal("12.345"), "CNY")


def test_an_account_that_is_not_certified_or_empty_is_told_apart(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    company.certified = False
    with pytest.raises(AccountGate, match="未完成实名认证"):
        rent(autodl)
    company.certified, company.assets = True, 0
    with pytest.raises(NoFunds, match="余额不足"):
        rent(autodl)
    assert company.held == []


def test_an_unknown_machine_costs_no_listing(company: FakeAutoDl, autodl: AutoDlProvider) -> None:
    assert autodl.get(Ref("autodl", "default", "global", "pro-none")) is None
    assert company.sent("POST", "/pro/list$") == 0


def test_every_spec_is_a_card_of_the_products_own_table() -> None:
    named = {spec: identify(label, vram, TABLE) for spec, (label, vram) in SPECS.items()}
    assert {spec: row.name if row else None for spec, row in named.items()} == {
        "h800": "H800",
        "v-48g": "RTX-4090-48GB",
        "v-48g-350w": "RTX-3090-48GB",
        "4090D": "RTX-4090D",
        "v-32g-p": "RTX-4080S-32GB",
        "5090-p": "RTX-5090",
        "pro6000-p": "RTX-PRO-6000",
    }


def test_the_price_of_two_cards_is_not_guessed(autodl: AutoDlProvider) -> None:
    (two,) = autodl.offers(Ask(gpus=(GpuWish("RTX-4090D", 24, 2),)))
    made = autodl.create(two, TAG, time.time() + 900, Boot("true", PUBLIC))
    seen = autodl.get(made.ref)
    assert seen is not None
    assert (seen.ready, seen.hourly, seen.currency) == (True, None, "")

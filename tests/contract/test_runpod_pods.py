"""RunPod's own ways: names as tags, one status for capacity and rules, pods that exit, data centres, CPU pods."""

from __future__ import annotations

import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest
from fake_runpod import FakeRunPod

from orchestrator.agent.hook import boot_hook
from providers.base import Ask, Boot, GpuWish, Instance, Offer, Tag
from providers.errors import Invalid, NoCapacity, NoFunds
from providers.runpod import BOOT_VARIABLE, IMAGE, RunPodProvider
from providers.startup import unpacked

PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX x"
ONE_4090 = GpuWish("RTX-4090", 24, 1)
TAG = Tag("contract", "rental-1", "job", "me")


@pytest.fixture
def company() -> Iterator[FakeRunPod]:
    with FakeRunPod() as company:
        yield company


@pytest.fixture
def runpod(company: FakeRunPod, tmp_path: Path) -> RunPodProvider:
    return RunPodProvider(company.config(tmp_path))


def rent(runpod: RunPodProvider, hook: str = "true", image: str = "") -> Instance:
    (offer,) = runpod.offers(Ask(gpus=(ONE_4090,)))
    return runpod.create(offer, TAG, time.time() + 900, Boot(hook, PUBLIC, image))


def test_an_offer_is_cards_and_disk(runpod: RunPodProvider) -> None:
    (two,) = runpod.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 2),), disk_min=146 * 10**9))
    assert two.hourly == Decimal("0.88") + Decimal("0.02")
    assert (two.gpu_count, two.disk, two.region, two.spot, two.image) == (2, 146 * 10**9, "global", False, IMAGE)
    assert runpod.offers(Ask(gpus=(GpuWish("RTX-4090", 24, 9),))) == ()
    assert runpod.offers(Ask(gpus=(ONE_4090,), spot=True)) == ()


def test_the_community_cloud_is_asked_only_when_the_config_says_so(company: FakeRunPod, tmp_path: Path) -> None:
    both = RunPodProvider(company.config(tmp_path, cloud=["secure", "community"]))
    offers = both.offers(Ask(gpus=(ONE_4090,)))
    assert sorted(offer.key.split("/")[0] for offer in offers) == ["COMMUNITY", "SECURE"]
    cheap = min(offers, key=lambda offer: offer.hourly)
    made = both.create(cheap, TAG, time.time() + 900, Boot("true", PUBLIC))
    assert company.pods[made.ref.id].asked["cloud"] == "COMMUNITY"


def test_data_centres_of_the_config_are_regions_and_decide_where_a_pod_is_listed(
    company: FakeRunPod, tmp_path: Path
) -> None:
    runpod = RunPodProvider(company.config(tmp_path, regions=["EU-RO-1", "XX-NO-9"]))
    assert runpod.regions() == ("EU-RO-1", "XX-NO-9")
    (offer,) = runpod.offers(Ask(gpus=(ONE_4090,)))
    made = runpod.create(offer, TAG, time.time() + 900, Boot("true", PUBLIC))
    pod = company.pods[made.ref.id]
    assert pod.asked["dataCenterIds"] == ["EU-RO-1"]
    pod.center = None  # the company does not say where it is, or says another place
    assert [i.ref for i in runpod.list("EU-RO-1").instances] == [made.ref]
    assert runpod.list("XX-NO-9").instances == ()


def test_without_a_card_the_smallest_large_enough_flavour_is_offered(
    company: FakeRunPod, runpod: RunPodProvider
) -> None:
    (offer,) = runpod.offers(Ask(cpus_min=3, memory_min=12 * 10**9))
    assert (offer.cpus, offer.memory, offer.gpu) == (8, 16 * 10**9, "")
    made = runpod.create(offer, TAG, time.time() + 900, Boot("true", PUBLIC))
    assert company.pods[made.ref.id].asked["cpu"] == {"id": "cpu5c", "vcpuCount": 8}
    assert runpod.offers(Ask(cpus_min=33)) == ()


def test_cpus_beside_a_card_are_refused_with_the_reason(runpod: RunPodProvider) -> None:
    with pytest.raises(Invalid, match="how many CPUs"):
        runpod.offers(Ask(gpus=(ONE_4090,), cpus_min=8))


def test_a_card_that_is_gone_since_the_catalogue_is_capacity(company: FakeRunPod, runpod: RunPodProvider) -> None:
    company.empty.add("NVIDIA GeForce RTX 4090")
    with pytest.raises(NoCapacity, match="no longer any instances"):
        rent(runpod)
    company.empty.clear()
    company.balance = 0.0
    with pytest.raises(NoFunds, match="insufficient balance"):
        rent(runpod)


def test_a_request_that_breaks_the_contract_is_invalid(company: FakeRunPod, runpod: RunPodProvider) -> None:
    (offer,) = runpod.offers(Ask(gpus=(ONE_4090,)))
    body = {"title": "Unprocessable Entity", "status": 422, "detail": "no", "errors": ["$.gpu: unknown"]}
    company.fault("POST", "/v2/pods", "refuse", status=422, body=body)
    with pytest.raises(Invalid, match=r"\$\.gpu: unknown"):
        runpod.create(offer, TAG, 2e9, Boot("true", PUBLIC))


def test_a_pod_that_exited_is_a_reclaim_that_is_over_and_not_dead(company: FakeRunPod, runpod: RunPodProvider) -> None:
    made = rent(runpod)
    company.exit(made.ref.id)
    seen = runpod.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.endpoint) == ("EXITED", False, None)
    assert seen.status not in runpod.caps.dead_statuses
    assert seen.notice is not None
    assert seen.notice.at <= time.time()


def test_a_pod_is_ready_with_its_direct_address_only(company: FakeRunPod, runpod: RunPodProvider) -> None:
    company.boot_s = 30.0
    made = rent(runpod)
    early = runpod.get(made.ref)
    assert early is not None
    assert (early.status, early.ready, early.endpoint, early.notice) == ("PROVISIONING", False, None, None)
    company.advance(31)
    later = runpod.get(made.ref)
    assert later is not None
    assert later.endpoint is not None
    assert (later.ready, later.endpoint.host) == (True, "127.0.0.1")


def test_a_pod_that_somebody_renamed_is_still_ours(company: FakeRunPod, runpod: RunPodProvider) -> None:
    made = rent(runpod)
    company.pods[made.ref.id].asked["name"] = "my favourite pod"
    assert [i.tag for i in runpod.list("global").instances] == [TAG]


def test_a_pod_that_is_shown_late_is_got_at_once(company: FakeRunPod, runpod: RunPodProvider) -> None:
    company.late_s = 60.0
    made = rent(runpod)
    assert runpod.list("global").instances == ()
    assert runpod.get(made.ref) is not None
    company.advance(61)
    assert [i.ref for i in runpod.list("global").instances] == [made.ref]


def test_strangers_are_shown_to_an_audit_and_to_nothing_else(company: FakeRunPod, runpod: RunPodProvider) -> None:
    made = rent(runpod)
    company.pods[made.ref.id].asked.update(name="by hand", env={})
    assert runpod.list("global").instances == ()
    assert [(i.ref.id, i.tag) for i in runpod.list_all("global").instances] == [(made.ref.id, None)]


def test_a_status_that_nobody_knows_survives(company: FakeRunPod, runpod: RunPodProvider) -> None:
    made = rent(runpod)
    company.fault(
        "GET", "/v2/pods/", "refuse", status=200, body={"id": made.ref.id, "status": "MIGRATING", "name": "x"}
    )
    seen = runpod.get(made.ref)
    assert seen is not None
    assert (seen.status, seen.ready, seen.notice, seen.tag) == ("MIGRATING", False, None, None)


def test_the_hook_the_key_and_the_image_reach_the_pod(company: FakeRunPod, runpod: RunPodProvider) -> None:
    hook = boot_hook(nonce="n" * 40, end=2e9, grace_s=120, action="poweroff", rental="rental-1")
    made = rent(runpod, hook, "ghcr.io/me/image@sha256:abc")
    asked = company.pods[made.ref.id].asked
    assert asked["image"] == "ghcr.io/me/image@sha256:abc"
    assert (asked["env"]["PUBLIC_KEY"], asked["startSsh"], asked["ports"]) == (PUBLIC, True, ["22/tcp"])
    assert company.machines.started[company.pods[made.ref.id].handle][0] == hook  # type: ignore[attr-defined]
    assert "runpodctl remove pod" in unpacked(asked["env"][BOOT_VARIABLE])


def test_many_jobs_that_list_at_once_cost_two_requests_at_most(company: FakeRunPod, runpod: RunPodProvider) -> None:
    from concurrent.futures import ThreadPoolExecutor

    made = rent(runpod)
    before = company.sent("GET", "/v2/pods$")
    with company.lock, ThreadPoolExecutor(40) as pool:  # the company is slow until all have asked
        waiting = [pool.submit(runpod.list, "global") for _ in range(40)]
        while pool._work_queue.qsize():
            time.sleep(0.01)
        time.sleep(0.1)
        company.lock.release()
        try:
            assert all([i.ref for i in each.result().instances] == [made.ref] for each in waiting)
        finally:
            company.lock.acquire()
    assert company.sent("GET", "/v2/pods$") - before <= 2


def test_an_offer_that_cannot_be_is_refused_before_anything_is_sent(
    company: FakeRunPod, runpod: RunPodProvider
) -> None:
    before = len(company.calls)
    broken = Offer("runpod", "default", "global", "SECURE/a/b", False, Decimal(1), "USD")
    with pytest.raises(Invalid, match="has no offer"):
        runpod.create(broken, TAG, 2e9, Boot("true", PUBLIC))
    assert len(company.calls) == before

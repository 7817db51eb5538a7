"""Rows of the fault matrix for create, list, get and destroy, the same for every company behind its fake."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aws_layer import AwsLayer, no_credentials
from fake_autodl import FakeAutoDl
from fake_lambda import FakeLambda
from fake_rest import FakeApi
from fake_runpod import FakeRunPod
from fake_spec import ABSENT
from fake_vast import FakeVast

from providers.autodl import AutoDlProvider
from providers.aws import AwsProvider
from providers.base import Ask, Boot, DestroyAck, GpuWish, Instance, Offer, Ref, Tag
from providers.errors import Ambiguous, AuthFailed, RateLimited, Refused
from providers.lambda_cloud import LambdaProvider
from providers.runpod import RunPodProvider
from providers.vast import VastProvider

UNPUBLISHED = "AWS publishes no OpenAPI: boto3 holds every request and answer to Amazon's own model"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB9Gn0u0OyYmHPkYbVJnnlnKR0fYtYpfJmIfkDHDPkdX x"
TAG = Tag("contract", "rental-1", "job", "me")


@dataclass(frozen=True)
class Company:
    """One company: its fake, its adapter, and where its verbs go."""

    fake: Callable[[], FakeApi]
    adapter: type[Any]
    wish: GpuWish
    create: tuple[str, str]
    list: tuple[str, str]
    get: tuple[str, str]
    destroy: tuple[str, str]
    held: Callable[[Any], int]  # machines that bill


COMPANIES = {
    "autodl": Company(
        FakeAutoDl, AutoDlProvider, GpuWish("RTX-4090D", 24, 1), ("POST", "/pro/create$"), ("POST", "/pro/list$"),
        ("GET", "/pro/status$"), ("POST", "/pro/release$"), lambda fake: len(fake.held),
    ),
    "aws": Company(
        AwsLayer, AwsProvider, GpuWish("L4", 24, 1), ("POST", "/RunInstances$"), ("POST", "/DescribeInstances$"),
        ("POST", "/DescribeInstances/"), ("POST", "/TerminateInstances$"), lambda fake: len(fake.running),
    ),
    "runpod": Company(
        FakeRunPod, RunPodProvider, GpuWish("RTX-4090", 24, 1), ("POST", "/v2/pods$"), ("GET", "/v2/pods$"),
        ("GET", "/v2/pods/"), ("DELETE", "/v2/pods/"), lambda fake: len(fake.pods),
    ),
    "lambda": Company(
        FakeLambda, LambdaProvider, GpuWish("A10", 24, 1), ("POST", "/launch$"), ("GET", "/instances$"),
        ("GET", "/instances/"), ("POST", "/terminate$"),
        lambda fake: sum(1 for each in fake.instances.values() if each.ended is None),
    ),
    "vast": Company(
        FakeVast, VastProvider, GpuWish("RTX-4090", 24, 1), ("PUT", "/asks/"), ("GET", "/v1/instances"),
        ("GET", "/v0/instances/"), ("DELETE", "/v0/instances/"), lambda fake: len(fake.contracts),
    ),
}  # fmt: skip


@dataclass
class Desk:
    """A company, an adapter and an offer."""

    company: Company
    fake: Any
    provider: Any
    offer: Offer

    def create(self, tag: Tag = TAG) -> Instance:
        made: Instance = self.provider.create(self.offer, tag, time.time() + 900, Boot("true", PUBLIC))
        return made

    def listed(self) -> list[str]:
        listing = self.provider.list(self.offer.region)
        dead = self.provider.caps.dead_statuses
        return [i.ref.id for i in listing.instances if i.tag == TAG and i.status not in dead]

    def fault(self, verb: str, kind: Any, **more: Any) -> None:
        method, path = getattr(self.company, verb)
        self.fake.fault(method, path, kind, **more)

    def sent(self, verb: str) -> int:
        return int(self.fake.sent(*getattr(self.company, verb)))

    @property
    def held(self) -> int:
        return self.company.held(self.fake)


@pytest.fixture(params=sorted(COMPANIES))
def desk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    no_credentials(monkeypatch, tmp_path)
    company = COMPANIES[request.param]
    with company.fake() as fake:
        provider = company.adapter(fake.config(tmp_path))
        offers = provider.offers(Ask(gpus=(company.wish,), spot=False))
        yield Desk(company, fake, provider, min(offers, key=lambda offer: offer.hourly))


# --- create -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["lost", "garbage"])
def test_a_create_whose_answer_is_lost_is_ambiguous_and_found_by_its_tag(desk: Desk, kind: str) -> None:
    desk.fault("create", kind)
    with pytest.raises(Ambiguous):
        desk.create()
    assert desk.sent("create") == 1, "a create is never repeated"
    assert desk.held == 1
    assert len(desk.listed()) == 1


def test_a_create_that_was_made_and_answered_with_an_error_of_the_server_is_ambiguous(desk: Desk) -> None:
    desk.fault("create", "answer-after", status=500, body={"error": "oops"})
    with pytest.raises(Ambiguous):
        desk.create()
    assert len(desk.listed()) == 1


def test_a_create_that_never_arrived_is_ambiguous_and_shows_nothing(desk: Desk) -> None:
    desk.fault("create", "cut")
    with pytest.raises(Ambiguous):
        desk.create()
    assert (desk.sent("create"), desk.held, desk.listed()) == (1, 0, [])


def test_a_create_refused_for_its_rate_made_nothing_and_is_not_sent_again_before_its_time(desk: Desk) -> None:
    desk.fault("create", "refuse", status=429, body={"detail": "slow"}, headers={"Retry-After": "30"})
    with pytest.raises(RateLimited) as first:
        desk.create()
    assert first.value.retry_after_s == 30.0
    with pytest.raises(RateLimited) as second:
        desk.create(Tag("contract", "rental-2"))
    assert second.value.retry_after_s is not None
    assert 25 < second.value.retry_after_s <= 30
    assert (desk.sent("create"), desk.held) == (1, 0)


def test_without_a_key_nothing_is_sent(desk: Desk) -> None:
    desk.fake.key, before = "", len(desk.fake.calls)
    with pytest.raises(AuthFailed, match=f"gpujob login {desk.provider.name}"):
        desk.create()
    assert len(desk.fake.calls) == before


def test_a_key_that_is_no_longer_valid_is_auth_and_a_new_one_works_at_once(desk: Desk, tmp_path: Path) -> None:
    keys = ["revoked"]
    config = desk.fake.config(tmp_path)
    provider = desk.company.adapter(
        type(config)(config.deployment, config.home, config.gpus, config.settings, lambda variable: keys[0])
    )
    with pytest.raises(AuthFailed) as refused:
        provider.list(desk.offer.region)
    assert "revoked" not in str(refused.value)
    keys[0] = desk.fake.key
    assert provider.list(desk.offer.region).instances == ()


def test_the_tag_comes_back_from_the_company_with_all_its_parts(desk: Desk) -> None:
    made = desk.create()
    fresh = desk.company.adapter(desk.provider.config)
    assert fresh.get(made.ref).tag == TAG
    assert [i.tag for i in fresh.list(made.ref.region).instances] == [TAG]


# --- list and get -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", [500, 502, 503])
def test_a_listing_that_fails_is_no_empty_listing(desk: Desk, status: int) -> None:
    desk.create()
    desk.fault("list", "refuse", status=status, body={})
    with pytest.raises(Ambiguous):
        desk.listed()
    assert len(desk.listed()) == 1


@pytest.mark.parametrize("body", [{}, {"pods": None}, {"data": {}}, {"instances": "busy"}, [], None])
def test_a_listing_without_its_rows_is_no_empty_listing(desk: Desk, body: Any) -> None:
    desk.create()
    desk.fault("list", "refuse", status=200, body=body)
    with pytest.raises(Ambiguous):
        desk.listed()


def test_a_page_of_html_is_no_empty_listing(desk: Desk) -> None:
    desk.fault("list", "garbage")
    with pytest.raises(Ambiguous):
        desk.listed()


def test_a_read_whose_connection_died_is_asked_once_more(desk: Desk) -> None:
    made = desk.create()
    desk.fault("list", "cut")
    desk.fault("get", "cut")
    assert desk.listed() == [made.ref.id]
    seen = desk.provider.get(made.ref)
    assert seen is not None
    assert seen.ref == made.ref
    desk.fault("get", "cut", times=2)
    with pytest.raises(Ambiguous):
        desk.provider.get(made.ref)


def test_get_says_none_only_for_what_the_company_does_not_know(desk: Desk) -> None:
    made = desk.create()
    desk.fault("get", "refuse", status=500, body={})
    with pytest.raises(Ambiguous):
        desk.provider.get(made.ref)
    assert desk.provider.get(Ref(made.ref.provider, made.ref.account, made.ref.region, "9" * 12)) is None


def test_a_rate_limit_of_reads_never_holds_a_destroy_back(desk: Desk) -> None:
    made = desk.create()
    desk.fault("list", "refuse", status=429, body={"detail": "slow"}, headers={"Retry-After": "600"})
    with pytest.raises(RateLimited):
        desk.listed()
    assert desk.provider.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert desk.held == 0


# --- destroy ----------------------------------------------------------------------------------------------------------


def test_a_destroy_whose_answer_is_lost_can_be_sent_again(desk: Desk) -> None:
    made = desk.create()
    desk.fault("destroy", "lost")
    with pytest.raises(Ambiguous):
        desk.provider.destroy(made.ref)
    assert desk.held == 0
    assert desk.provider.destroy(made.ref) in DestroyAck


@pytest.mark.parametrize("status", [400, 409, 418, 500, 503])
def test_a_destroy_that_was_not_done_is_never_called_settled(desk: Desk, status: int) -> None:
    made = desk.create()
    desk.fault("destroy", "refuse", status=status, body={"detail": "busy, try in 60 s"})
    with pytest.raises(Ambiguous):
        desk.provider.destroy(made.ref)
    assert desk.held == 1
    assert desk.provider.destroy(made.ref) is DestroyAck.ACKNOWLEDGED
    assert desk.held == 0


def test_nothing_of_a_rental_is_left_after_its_leftovers_were_destroyed(desk: Desk) -> None:
    made = desk.create()
    desk.provider.destroy(made.ref)
    for other in desk.provider.list(made.ref.region).others:
        assert other.tag is not None
        assert other.tag.rental == TAG.rental
        assert desk.provider.destroy(other.ref) is DestroyAck.ACKNOWLEDGED
        assert desk.provider.destroy(other.ref) is DestroyAck.MISSING
    assert desk.provider.list(made.ref.region).others == ()
    assert getattr(desk.fake, "keys", {}) == {}


# --- the fake itself --------------------------------------------------------------------------------------------------


def test_the_fake_is_held_to_the_companys_document(desk: Desk) -> None:
    if desk.fake.document is None:
        pytest.skip(UNPUBLISHED if desk.company.adapter is AwsProvider else ABSENT)
    errors = desk.fake.document.errors("POST", "/no/such/address", 200, {})
    assert errors == ["the document has no POST /no/such/address"]
    method = desk.company.list[0]
    address = {
        "autodl": "/api/v1/dev/instance/pro/list", "runpod": "/v2/pods", "lambda": "/api/v1/instances",
        "vast": "/api/v1/instances",
    }[desk.fake.name]  # fmt: skip
    assert desk.fake.document.errors(method, address, 200, {"pods": [7], "data": [7], "instances": [7]}) != []
    assert desk.fake.violations == []


def test_a_request_that_breaks_the_document_would_be_seen(desk: Desk) -> None:
    if desk.fake.document is None:
        pytest.skip(UNPUBLISHED if desk.company.adapter is AwsProvider else ABSENT)
    method, path = {
        "runpod": ("POST", "/v2/pods"), "lambda": ("POST", "/api/v1/ssh-keys"), "vast": ("PUT", "/api/v0/asks/7/"),
        "autodl": ("POST", "/api/v1/dev/instance/pro/create"),
    }[desk.fake.name]  # fmt: skip
    assert desk.fake.document.errors(method, path, None, {"image": 7, "name": 7}) != []


def test_a_refusal_is_of_the_refused_kind(desk: Desk) -> None:
    broken = Offer(**{**desk.offer.__dict__, "key": "no such offer"})
    with pytest.raises(Refused):
        desk.provider.create(broken, TAG, 2e9, Boot("true", PUBLIC))
    assert desk.held == 0

"""No answer crashes an adapter: bodies that the companies' documents allow, and bodies that they do not."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from fake_rest import GPUS
from fake_spec import ABSENT, allowed, document
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from providers.autodl import AutoDlProvider
from providers.base import Ask, Boot, GpuWish, Instance, Listing, Offer, Provider, ProviderConfig, Ref, Tag
from providers.errors import ProviderError
from providers.fields import parsed
from providers.lambda_cloud import LambdaProvider
from providers.naming import tag_text
from providers.rest import Answer, Rest
from providers.runpod import RunPodProvider
from providers.vast import VastProvider

TAG = Tag("dep", "rental-1", "job", "me")
ASK = Ask(gpus=tuple(GpuWish(row.name, row.vram_gb, 1) for row in GPUS))
MAKERS: dict[str, Callable[[ProviderConfig], Any]] = {
    "autodl": AutoDlProvider,
    "runpod": RunPodProvider,
    "lambda": LambdaProvider,
    "vast": VastProvider,
}
OFFERS = {"autodl": "4090D/1/0", "runpod": "SECURE/NVIDIA A10/1/50", "lambda": "gpu_1x_a10", "vast": "101:40:0.2"}
VERBS: dict[str, Callable[[Provider, Offer], Any]] = {
    "offers": lambda provider, offer: provider.offers(ASK),
    "cpu offers": lambda provider, offer: provider.offers(Ask()),
    "list": lambda provider, offer: provider.list(provider.regions()[0]),
    "get": lambda provider, offer: provider.get(Ref(provider.name, provider.account, offer.region, "883")),
    "destroy": lambda provider, offer: provider.destroy(Ref(provider.name, provider.account, offer.region, "883")),
    "create": lambda provider, offer: provider.create(offer, TAG, 2e9, Boot("true", "ssh-ed25519 AAAA x")),
}
#: Further verbs, of providers that have them.
MORE_VERBS: dict[str, Callable[[Any, Offer], Any]] = {
    "told": VERBS["get"],
    "list all": lambda provider, offer: provider.list_all(provider.regions()[0]),
    "balance": lambda provider, offer: provider.balance(),
}
#: Where the documents describe the answers of each verb; Lambda's listing reads machines and keys.
OPERATIONS = [
    ("autodl", "autodl-derived.yaml", "offers", "POST", "/api/v1/dev/machine/region/gpu_stock"),
    ("autodl", "autodl-derived.yaml", "list", "POST", "/api/v1/dev/instance/pro/list"),
    ("autodl", "autodl-derived.yaml", "list all", "POST", "/api/v1/dev/instance/pro/image/private/list"),
    ("autodl", "autodl-derived.yaml", "get", "GET", "/api/v1/dev/instance/pro/status"),
    ("autodl", "autodl-derived.yaml", "told", "GET", "/api/v1/dev/instance/pro/snapshot"),
    ("autodl", "autodl-derived.yaml", "create", "POST", "/api/v1/dev/instance/pro/create"),
    ("autodl", "autodl-derived.yaml", "destroy", "POST", "/api/v1/dev/instance/pro/release"),
    ("autodl", "autodl-derived.yaml", "balance", "POST", "/api/v1/dev/wallet/balance"),
    ("runpod", "runpod-v2.json", "offers", "GET", "/v2/catalog/gpus"),
    ("runpod", "runpod-v2.json", "cpu offers", "GET", "/v2/catalog/cpus"),
    ("runpod", "runpod-v2.json", "list", "GET", "/v2/pods"),
    ("runpod", "runpod-v2.json", "get", "GET", "/v2/pods/{id}"),
    ("runpod", "runpod-v2.json", "create", "POST", "/v2/pods"),
    ("lambda", "lambda.json", "offers", "GET", "/api/v1/instance-types"),
    ("lambda", "lambda.json", "list", "GET", "/api/v1/instances"),
    ("lambda", "lambda.json", "get", "GET", "/api/v1/instances/{id}"),
    ("lambda", "lambda.json", "create", "POST", "/api/v1/instance-operations/launch"),
    ("lambda", "lambda.json", "destroy", "POST", "/api/v1/instance-operations/terminate"),
    ("vast", "vast.yaml", "offers", "POST", "/api/v0/bundles"),
    ("vast", "vast.yaml", "list", "GET", "/api/v1/instances"),
    ("vast", "vast.yaml", "get", "GET", "/api/v0/instances/{id}"),
    ("vast", "vast.yaml", "create", "PUT", "/api/v0/asks/{id}"),
    ("vast", "vast.yaml", "destroy", "DELETE", "/api/v0/instances/{id}"),
]


def made(name: str) -> tuple[Any, Offer]:
    config = ProviderConfig(
        "dep", Path("."), GPUS, {"requests_per_s": 10**9, "prices": {"4090D": 2}}, lambda variable: "key"
    )
    provider = MAKERS[name](config)
    region = provider.regions()[0]
    spot = name == "vast"
    return provider, Offer(name, "default", region, OFFERS[name], spot, Decimal("0.3"), "USD", gpu="A10", gpu_count=1)


def answered(name: str, verb: str, status: int, body: Any) -> Any:
    """What the verb makes of one answer to all its requests; a ProviderError is an answer as well."""
    provider, offer = made(name)
    if name == "lambda":
        provider._regions = ("us-west-1",)
    text = json.dumps(body)
    answer = Answer(status, parsed(text), text, {})

    def send(self: Rest, method: str, path: str, *_: Any) -> Answer:
        if name != "autodl" or path.endswith(AUTODL_PATHS[verb]):
            return answer
        said = json.dumps(AUTODL_OTHERS[path.rpartition("/")[2]])  # its verbs take several calls
        return Answer(200, parsed(said), said, {})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Rest, "_send", send)
        patch.setattr(Rest, "_take_turn", lambda self, what: None)
        try:
            return (VERBS | MORE_VERBS)[verb](provider, offer)
        except ProviderError as error:
            return error


def check(name: str, verb: str, found: Any) -> None:
    """What came out is of the protocol's types, whatever went in."""
    if isinstance(found, Listing):
        for instance in found.instances:
            assert instance.tag is not None
            assert instance.tag.deployment == "dep"
    if isinstance(found, Instance):
        assert isinstance(found.status, str)
        assert found.hourly is None or isinstance(found.hourly, Decimal)
    if isinstance(found, tuple):
        assert all(isinstance(offer, Offer) and offer.hourly > 0 and offer.key for offer in found)


@pytest.mark.parametrize(("name", "spec", "verb", "method", "path"), OPERATIONS, ids=lambda each: str(each))
def test_whatever_the_document_allows_is_read(name: str, spec: str, verb: str, method: str, path: str) -> None:
    there = document(spec)
    if there is None:
        pytest.skip(ABSENT)
    operation = there.operation(method, path.replace("{id}", "883"))
    statuses = [int(status) for status in operation["responses"] if status.isdecimal()]

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(st.data())
    def one(data: st.DataObject) -> None:
        status = data.draw(st.sampled_from(statuses + [statuses[0]] * 6))
        schema = there.schema(operation, status)
        body = data.draw(allowed(there.root, schema)) if schema is not None else None
        check(name, verb, answered(name, verb, status, body))

    one()


# Bodies as they mostly are; what is done to them is anything.
POD = {
    "id": "883", "name": tag_text(TAG, "global"), "status": "RUNNING", "cost": 0.44, "env": {"GPUJOB_TAG": "x"},
    "ssh": {"direct": {"host": "h", "port": 22, "username": "root"}}, "createdAt": "2026-06-01T12:00:00Z",
}  # fmt: skip
CARD = {
    "id": "NVIDIA A10", "memory": 24, "secure": True, "price": {"secure": 0.4}, "maxCount": {"secure": 8},
    "availability": "HIGH", "dataCenters": [{"id": "US-1", "availability": "LOW"}],
}  # fmt: skip
KIND = {
    "name": "gpu_1x_a10", "gpu_description": "A10 (24 GB PCIe)", "price_cents_per_hour": 75,
    "specs": {"vcpus": 30, "memory_gib": 200, "storage_gib": 1400, "gpus": 1},
}  # fmt: skip
MACHINE = {
    "id": "883", "name": "rental-1", "ip": "198.51.100.2", "status": "active", "region": {"name": "us-west-1"},
    "instance_type": KIND,
    "tags": [{"key": "gpujob-deployment", "value": "dep"}, {"key": "gpujob-rental", "value": "r"}],
}  # fmt: skip
CONTRACT = {
    "id": 883, "actual_status": "running", "intended_status": "running", "cur_state": "running", "dph_total": 1.0,
    "next_state": "running", "label": tag_text(TAG, "global"), "public_ipaddr": "63.135.50.11 ", "machine_id": 178,
    "ports": {"22/tcp": [{"HostPort": "4022"}]}, "ssh_host": "ssh.example", "ssh_port": 10882, "start_date": 1.7e9,
}  # fmt: skip
ASK_ROW = {
    "id": 101, "gpu_name": "RTX 4090", "gpu_ram": 24564, "num_gpus": 1, "cpu_cores_effective": 16.0, "cpu_ram": 128000,
    "gpu_frac": 0.5, "disk_space": 800.0, "dph_base": 0.4, "min_bid": 0.12, "storage_cost": 0.15, "machine_id": 7,
    "geolocation": "Oslo, NO",
}  # fmt: skip
BOX = {
    "uuid": "883", "name": tag_text(TAG, "global"), "status": "running", "gpu_spec_uuid": "4090D",
    "region_sign": "bj-B2", "req_gpu_amount": 1, "created_at": "2026-06-01T12:00:00+08:00", "machine_id": "m7",
}  # fmt: skip
TOLD = {"payg_price": 1880, "proxy_host": "h", "ssh_port": 22, "root_password": "secret"}
PAGES = {"page_index": 1, "max_page": 1, "result_total": 1}


def said(data: Any) -> dict[str, Any]:
    return {"code": "Success", "msg": "", "data": data}


AUTODL_PATHS = {
    "offers": "gpu_stock", "cpu offers": "gpu_stock", "list": "pro/list", "list all": "image/private/list",
    "get": "status", "told": "snapshot", "create": "create", "destroy": "release", "balance": "balance",
}  # fmt: skip
AUTODL_OTHERS = {
    "status": said("shutdown"), "list": said({"list": [BOX], **PAGES}), "snapshot": said(TOLD), "power_off": said(None),
}  # fmt: skip
USUAL = [
    ("autodl", "offers", said([{"RTX 4090D": {"idle_gpu_num": 3, "total_gpu_num": 9, "chip_corp": "nvidia"}}])),
    ("autodl", "list", said({"list": [BOX], **PAGES})),
    ("autodl", "list all", said({"list": [{"image_uuid": "image-1", "status": "finished"}], **PAGES})),
    ("autodl", "get", said("running")),
    ("autodl", "told", said(TOLD)),
    ("autodl", "create", said("pro-7")),
    ("autodl", "destroy", said(None)),
    ("autodl", "balance", said({"assets": 7000, "voucher_balance": 0})),
    ("runpod", "offers", {"gpus": [CARD]}),
    ("runpod", "list", {"pods": [POD]}),
    ("runpod", "get", POD),
    ("runpod", "create", POD),
    ("lambda", "offers", {"data": {"a": {"instance_type": KIND, "regions_with_capacity_available": [{"name": "x"}]}}}),
    ("lambda", "list", {"data": [MACHINE]}),
    ("lambda", "get", {"data": MACHINE}),
    ("lambda", "create", {"data": {"id": "key", "instance_ids": ["883"]}}),
    ("lambda", "destroy", {"data": {"terminated_instances": [MACHINE]}}),
    ("vast", "offers", {"offers": [ASK_ROW]}),
    ("vast", "list", {"instances": [CONTRACT], "total_instances": 1, "next_token": None}),
    ("vast", "get", {"instances": CONTRACT}),
    ("vast", "create", {"success": True, "new_contract": 883}),
    ("vast", "destroy", {"success": True}),
]  # fmt: skip
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(10**20), 10**20), st.floats(allow_nan=False), st.text(max_size=5),
    st.sampled_from([[], {}, [None], [[]], [{}], {"id": []}, "-1", "1e400", "NaN", 10**40]),
)  # fmt: skip


def places(body: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a body."""
    found = [path]
    steps: Any = body.items() if isinstance(body, dict) else enumerate(body) if isinstance(body, list) else ()
    for step, value in steps:
        found += places(value, (*path, step))
    return found


def changed(body: Any, path: tuple[Any, ...], value: Any, drop: bool) -> Any:
    """A copy with the value at `path` replaced or left out."""
    if not path:
        return value
    copy: Any = dict(body) if isinstance(body, dict) else list(body)
    if len(path) == 1 and drop:
        del copy[path[0]]
    else:
        copy[path[0]] = changed(copy[path[0]], path[1:], value, drop)
    return copy


@pytest.mark.parametrize(("name", "verb", "body"), USUAL, ids=[f"{name}-{verb}" for name, verb, _ in USUAL])
def test_a_body_with_anything_in_place_of_anything_is_read(name: str, verb: str, body: Any) -> None:
    assert not isinstance(answered(name, verb, 200, body), ProviderError), "the usual body must be taken"

    @settings(max_examples=120, deadline=None, derandomize=True)
    @given(st.sampled_from(places(body)), ODD, st.booleans(), st.sampled_from([200, 200, 200, 400, 404, 418, 503]))
    def one(path: tuple[Any, ...], value: Any, drop: bool, status: int) -> None:
        check(name, verb, answered(name, verb, status, changed(body, path, value, drop)))

    one()


ERRORS = [
    ("autodl", {"code": "InternalError", "msg": "当前算力规格暂无库存, 请修改配置或稍等再试", "request_id": "r"}),
    ("runpod", {"title": "Bad Request", "status": 400, "detail": "no", "errors": ["$: additional properties"]}),
    ("lambda", {"error": {"code": "global/quota-exceeded", "message": "Quota exceeded.", "suggestion": None}}),
    ("vast", {"success": False, "error": ["invalid_args"], "msg": "no", "ask_id": 7, "detail": "threshold=4.5"}),
]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize(("name", "body"), ERRORS, ids=[name for name, _ in ERRORS])
def test_an_error_body_with_anything_in_place_of_anything_is_an_error(name: str, body: Any, verb: str) -> None:
    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(st.sampled_from(places(body)), ODD, st.booleans(), st.sampled_from([400, 401, 402, 403, 409, 422, 429, 500]))
    def one(path: tuple[Any, ...], value: Any, drop: bool, status: int) -> None:
        found = answered(name, verb, status, changed(body, path, value, drop))
        # Nothing is asked where the market has no machines without a card.
        assert isinstance(found, ProviderError) or (name in ("vast", "autodl") and verb == "cpu offers")

    one()

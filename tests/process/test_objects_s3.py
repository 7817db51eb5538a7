"""Object stores against a real S3 server: what is written is there, what is refused is told apart, and a machine's
credentials reach its own prefix only."""

from __future__ import annotations

import hashlib
import os
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from fault_proxy import FaultProxy
from s3_server import OTHER, OWNER, S3Server

from orchestrator.agent.sigv4 import UNSIGNED, key_url, signed_headers
from orchestrator.objects import (
    StoreDenied,
    StoreExists,
    StoreMissing,
    StoreRefused,
    StoreSettings,
    StoreUnreachable,
    locate,
)
from orchestrator.objects.probe import probe
from orchestrator.objects.s3 import S3Store


def fetch(url: str, method: str = "GET", data: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
    given = {"Content-Type": "application/octet-stream", **(headers or {})}
    with urllib.request.urlopen(
        urllib.request.Request(url, data=data, method=method, headers=given), timeout=20
    ) as got:
        body: bytes = got.read()
        return body


def status_of(url: str, method: str = "GET", data: bytes | None = None, headers: dict[str, str] | None = None) -> int:
    try:
        fetch(url, method, data, headers)
    except urllib.error.HTTPError as error:
        with error:
            return error.code
    return 200


def test_what_is_written_is_read_listed_described_and_removed(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.store()
    put = store.put("basic/a b+c.txt", b"hello")
    assert store.get("basic/a b+c.txt") == b"hello"
    seen = store.head("basic/a b+c.txt")
    assert seen is not None
    assert (seen.size, seen.sha256, seen.md5) == (5, hashlib.sha256(b"hello").hexdigest(), put.md5)
    assert [found.key for found in store.list("basic/")] == ["basic/a b+c.txt"]
    assert store.get_to("basic/a b+c.txt", tmp_path / "copy") == put.sha256
    assert (tmp_path / "copy").read_bytes() == b"hello"
    store.delete(["basic/a b+c.txt", "basic/never was"])
    assert store.head("basic/a b+c.txt") is None
    with pytest.raises(StoreMissing):
        store.get("basic/a b+c.txt")


def test_a_listing_has_all_pages(s3_server: S3Server) -> None:
    store = s3_server.store()
    names = [f"pages/{number:04}" for number in range(7)]
    for name in names:
        store.put(name, name.encode())
    client, asked = store._s3, []
    original = client.list_objects_v2

    def three_a_page(**given: object) -> object:
        asked.append(given)
        return original(MaxKeys=3, **given)

    client.list_objects_v2 = three_a_page
    assert [found.key for found in store.list("pages/")] == names
    assert len(asked) == 3


def test_a_conditional_write_never_replaces(s3_server: S3Server) -> None:
    store = s3_server.store()
    store.put("once/a", b"first", once=True)
    with pytest.raises(StoreExists):
        store.put("once/a", b"second", once=True)
    assert store.get("once/a") == b"first"


def test_a_large_file_goes_in_parts_and_parts_can_be_presigned(s3_server: S3Server, tmp_path: Path) -> None:
    store = s3_server.store()
    data = os.urandom(17 << 20)
    (tmp_path / "big").write_bytes(data)
    assert store.put_from(tmp_path / "big", "big/file").sha256 == hashlib.sha256(data).hexdigest()
    assert store.sha256("big/file") == hashlib.sha256(data).hexdigest()
    upload = store.multipart_start("big/parts")
    etags = []
    for number, part in enumerate((data[: 5 << 20], data[5 << 20 : 6 << 20]), 1):
        url = store.multipart_presign("big/parts", upload, number, 60)
        request = urllib.request.Request(url, data=part, method="PUT", headers={"Content-Type": "x/y"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            etags.append(answer.headers["ETag"])
    store.multipart_complete("big/parts", upload, etags)
    assert store.sha256("big/parts") == hashlib.sha256(data[: 6 << 20]).hexdigest()
    store.multipart_abort("big/parts", store.multipart_start("big/parts"))
    store.multipart_abort("big/parts", "no-such-upload")


def test_presigned_urls_do_one_thing_to_one_object(s3_server: S3Server) -> None:
    store = s3_server.store()
    url = store.presign_put("signed/ä b", 60)
    assert fetch(url, "PUT", b"by url") == b""
    assert fetch(store.presign_get("signed/ä b", 60)) == b"by url"
    assert status_of(url) == 403  # a URL that writes does not read
    assert status_of(url.replace("signed/", "other/"), "PUT", b"x") == 403


@pytest.mark.parametrize("kind", ["sts", "presigned"])
def test_a_machine_cannot_read_write_list_or_delete_beside_its_prefix(s3_server: S3Server, kind: str) -> None:
    store = s3_server.store(role=kind == "sts")
    store.put("beside/secret", b"of another job")
    store.put("jobs/a.1/t0.1x/beside", b"its name begins as the machine's own prefix")
    access = store.access("jobs/a.1/t0.1", 900, "a.1-t0.1")
    assert access.kind == kind
    assert access.until is not None
    if kind == "presigned":
        assert access.keys == {}  # nothing that could sign another name
        return
    assert access.keys["secret"] not in OWNER.values()
    machine = S3Store(
        s3_server.settings(),
        {
            "aws_access_key_id": access.keys["access"],
            "aws_secret_access_key": access.keys["secret"],
            "aws_session_token": access.keys["token"],
        },
    )
    machine.put("jobs/a.1/t0.1/o/one", b"mine")
    assert machine.get("jobs/a.1/t0.1/o/one") == b"mine"
    for refused in (
        lambda: machine.get("beside/secret"),
        lambda: machine.put("beside/mine", b"x"),
        lambda: machine.get("jobs/a.1/t0.1x/beside"),
        lambda: machine.put("jobs/a.1/t0.1x/mine", b"x"),
        lambda: machine.put("jobs/a.1/t0.2/o/one", b"a successor's"),
        lambda: machine.list(""),
        lambda: machine.list("jobs/a.1/t0.1/"),
        lambda: machine.delete(["jobs/a.1/t0.1/o/one"]),
        lambda: machine.multipart_start("beside/parts"),
    ):
        with pytest.raises(StoreDenied):
            refused()
    # and with the agent's own signatures, which is how a machine really asks
    for key, method, data, wanted in (
        ("jobs/a.1/t0.1/o/two", "PUT", b"mine too", 200),
        ("beside/mine", "PUT", b"x", 403),
        ("beside/secret", "GET", None, 403),
    ):
        url = key_url(store.base_url, key)
        headers = signed_headers(method, url, {}, UNSIGNED, access.keys, time.time())
        assert status_of(url, method, data, headers) == wanted, key
    assert store.get("jobs/a.1/t0.1/o/two") == b"mine too"
    assert store.head("beside/mine") is None


def test_each_refusal_has_its_own_kind_and_a_next_step(s3_server: S3Server) -> None:
    wrong = S3Store(s3_server.settings(), {**OWNER, "aws_secret_access_key": "not it"})
    with pytest.raises(StoreDenied, match="check the key"):
        wrong.put("x", b"")
    other = S3Store(StoreSettings("lab", "s3://no-such-bucket", s3_server.endpoint, "us-east-1"), OWNER)
    with pytest.raises(StoreMissing):
        other.get("x")
    dead = S3Store(StoreSettings("lab", "s3://lab", "http://127.0.0.1:9", "us-east-1"), OWNER)
    with pytest.raises(StoreUnreachable, match="check `endpoint`"):
        dead.head("x")
    scoped = S3Store(s3_server.settings(), OTHER)
    scoped.put("scoped/mine", b"x")
    with pytest.raises(StoreDenied):
        scoped.put("elsewhere/mine", b"x")


def test_trouble_of_the_store_is_repeated_and_told_when_it_lasts(s3_server: S3Server, fault_proxy: FaultProxy) -> None:
    store = S3Store(s3_server.settings(endpoint=fault_proxy.endpoint), OWNER)
    fault_proxy.fault = lambda method, path, number: "500" if method == "PUT" and number <= 2 else None
    store.put("faults/a", b"a")
    assert store.get("faults/a") == b"a"
    fault_proxy.fault = lambda method, path, number: {"PUT": "412", "GET": "500", "HEAD": None}.get(method)
    with pytest.raises(StoreExists):
        store.put("faults/a", b"b", once=True)
    with pytest.raises(StoreUnreachable, match="trouble of its own"):
        store.get("faults/a")
    fault_proxy.fault = lambda method, path, number: "skew"
    with pytest.raises(StoreRefused, match="clock"):
        store.put("faults/a", b"b")


def test_a_probe_finds_a_store_that_only_says_yes(s3_server: S3Server, fault_proxy: FaultProxy) -> None:
    settings = s3_server.settings(prefix="probed", endpoint=fault_proxy.endpoint)
    location = locate("lab:runs", {"lab": settings})
    store = S3Store(settings, OWNER)
    probe(store, location)
    assert store.list("probed/") == ()  # it leaves nothing behind
    fault_proxy.fault = lambda method, path, number: "lose" if method == "PUT" else None
    with pytest.raises(StoreMissing):
        probe(store, location)
    fault_proxy.fault = lambda method, path, number: "alter" if method == "GET" else None
    with pytest.raises(StoreRefused, match="did not give back"):
        probe(store, location)

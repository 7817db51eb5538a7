"""What `lab:prefix` and `s3://bucket/prefix` mean, and where the key of a store is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.home import Home
from orchestrator.objects.errors import StoreDenied, StoreRefused
from orchestrator.objects.s3 import machine_policy
from orchestrator.objects.settings import StoreSettings, find_key, locate

LAB = StoreSettings("lab", "s3://bucket/team", "https://s3.example.org")
DEEP = StoreSettings("deep", "s3://bucket/team/deep")


@pytest.mark.parametrize(
    ("place", "store", "prefix"),
    [
        ("lab:ckpt", "lab", "team/ckpt"),
        ("lab:", "lab", "team"),
        ("lab:a/b/", "lab", "team/a/b"),
        ("s3://bucket/team/deep/x", "deep", "team/deep/x"),
        ("s3://bucket/team", "lab", "team"),
        ("s3://bucket/teams/x", "", "teams/x"),
        ("s3://elsewhere", "", ""),
    ],
)
def test_a_place_finds_its_store(place: str, store: str, prefix: str) -> None:
    found = locate(place, {"lab": LAB, "deep": DEEP})
    assert (found.settings.name, found.prefix) == (store, prefix)


def test_a_place_without_a_store_says_which_there_are() -> None:
    with pytest.raises(StoreRefused, match="configured: deep, lab"):
        locate("lib:ckpt", {"lab": LAB, "deep": DEEP})
    with pytest.raises(StoreRefused, match="write s3://bucket/prefix"):
        locate("ftp://host/x", {})


def test_keys_below_a_place() -> None:
    found = locate("lab:", {"lab": StoreSettings("lab", "s3://bucket")})
    assert found.key("a", "", "b") == "a/b"
    assert found.url == "s3://bucket"


def test_the_key_is_the_stores_own_before_the_accounts(tmp_path: Path) -> None:
    home = Home(tmp_path / "s", tmp_path / "c")
    env = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    assert find_key(LAB, home, env) == {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    env |= {"LAB_ACCESS_KEY_ID": "c", "LAB_SECRET_ACCESS_KEY": "d", "LAB_SESSION_TOKEN": "e"}
    assert find_key(LAB, home, env) == {
        "aws_access_key_id": "c",
        "aws_secret_access_key": "d",
        "aws_session_token": "e",
    }
    assert find_key(StoreSettings("lab", "s3://b", profile="work"), home, env) == {}
    with pytest.raises(StoreDenied, match="gpujob secret set LAB_SECRET_ACCESS_KEY"):
        find_key(LAB, home, {"LAB_ACCESS_KEY_ID": "c"})


def test_a_machines_policy_ends_at_a_slash() -> None:
    (allowed,) = machine_policy("b", "jobs/a/t0.1")["Statement"]
    assert allowed["Resource"] == ["arn:aws:s3:::b/jobs/a/t0.1/*"]
    (allowed,) = machine_policy("b", "a*/b?c/$d")["Statement"]  # a place that a user may write, and no pattern
    assert allowed["Resource"] == ["arn:aws:s3:::b/a${*}/b${?}c/${$}d/*"]
    assert "s3:DeleteObject" not in allowed["Action"]
    assert "s3:ListBucket" not in allowed["Action"]

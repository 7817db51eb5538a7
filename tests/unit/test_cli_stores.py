"""The stores of a spec at plan and apply: which mirror holds where none is named, and what is said of access."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from jobspecs.load import load_located
from orchestrator.cli.specs import Loaded
from orchestrator.cli.stores import places, use_of, with_default_mirror
from orchestrator.config import Config
from orchestrator.objects.settings import Location, StoreSettings

LAB = StoreSettings("lab", "s3://b/team")
BASE = "name: a\ngpu: none\nrun: train --resume $GPUJOB_RESUME_FROM\n"


def loaded(text: str) -> Loaded:
    return Loaded(load_located(text, "job.yaml"), Path("."), "job.yaml")


def mirror_of(text: str, **stores: StoreSettings) -> str | None:
    config = Config(Path("config.yaml"), stores=stores)
    spec = with_default_mirror([loaded(text)], config)[0].spec
    return spec.checkpoint.mirror if spec.checkpoint is not None else None


def test_the_one_store_is_the_mirror_of_jobs_that_save() -> None:
    assert mirror_of(BASE, lab=LAB) == "lab:"
    assert mirror_of(BASE + "checkpoint: {keep: 1, mirror: 'lab:deep'}\n", lab=LAB) == "lab:deep"
    assert mirror_of(BASE + "checkpoint: {mirror: .}\n", lab=LAB) == "."
    assert mirror_of(BASE, lab=LAB, other=LAB) is None  # which of them is not ours to guess
    assert mirror_of(BASE) is None
    assert mirror_of("name: a\ngpu: none\nrun: echo hi\n", lab=LAB) is None
    found = with_default_mirror([loaded(BASE)], Config(Path("c"), stores={"lab": LAB}))[0]
    assert found.located.origins["checkpoint"] == "config"


def test_what_a_spec_writes_to() -> None:
    spec = loaded(
        BASE + "checkpoint: {mirror: 'lab:c'}\nartifacts: [{path: a, to: ./x}, {path: b, to: 's3://b/x'}]\n"
    ).spec
    assert list(places(spec)) == [("lab:c", "checkpoints"), ("s3://b/x", "results")]


@pytest.mark.parametrize(
    ("settings", "ttl", "kind", "warned"),
    [
        (LAB, "12h", "presigned", ""),
        (LAB, "9d", "presigned", "longer than the 168h"),
        (replace(LAB, role_arn="arn:x"), "12h", "sts", ""),
        (replace(LAB, role_arn="arn:x"), "20h", "sts", "longer than the 12h"),
        (replace(LAB, scoped_key=True), "9d", "scoped", "whoever owns the machine"),
    ],
)
def test_access_that_ends_before_the_job_is_said(settings: StoreSettings, ttl: str, kind: str, warned: str) -> None:
    spec = loaded(f"{BASE}ttl: {ttl}\n").spec
    use = use_of("lab:c", "checkpoints", Location(settings, "team/c"), spec, kept=True)
    assert use.kind == kind
    assert [warned in each for each in use.warnings] == ([True] if warned else [])
    (said,) = use_of("lab:c", "results", Location(settings, "team/c"), spec, kept=False).warnings
    assert "gpujob secret set LAB_ACCESS_KEY_ID" in said

"""An image per provider, and what the agent is told of a docker image that it is to run the stages in."""

from __future__ import annotations

from decimal import Decimal

import pytest

from jobspecs.load import load_spec
from orchestrator.images import container_of
from orchestrator.policy import ask_of
from providers.base import Ask, Offer, is_docker_image

SPEC = """
name: lora
gpu: "L4:2"
shm_size: 8GB
image: pytorch/pytorch:2.4.0
data:
  - {from: ./a, path: train}
  - {from: ./b, path: /mnt/corpus}
checkpoint: {path: /mnt/ckpt}
artifacts:
  - {path: "/mnt/results/*.txt"}
  - {path: "/*"}
run: echo hi
"""


def offer(container: str) -> Offer:
    return Offer("aws", "default", "r", "k", False, Decimal(1), "USD", gpu="L4", gpu_count=2, container=container)


def test_the_agent_is_told_of_the_image_its_cards_its_memory_and_the_folders_outside_the_jobs() -> None:
    spec = load_spec(SPEC, "gpujob.yaml")
    assert container_of(spec, offer("pytorch/pytorch:2.4.0")) == {
        "container": {
            "image": "pytorch/pytorch:2.4.0",
            "gpus": 2,
            "shm_bytes": 8 * 10**9,
            "mounts": ["/mnt/ckpt", "/mnt/corpus", "/mnt/results"],
        }
    }
    assert container_of(spec, offer("")) == {}


def test_each_provider_is_asked_for_its_own_image() -> None:
    text = SPEC.replace("image: pytorch/pytorch:2.4.0", "image: {aws: ami-0123456789abcdef0, vast: pytorch/pytorch}")
    ask = ask_of(load_spec(text, "gpujob.yaml"))
    assert (ask.at("aws").image, ask.at("vast").image, ask.at("runpod").image) == (
        "ami-0123456789abcdef0", "pytorch/pytorch", "",
    )  # fmt: skip
    assert ask.at("aws").images == ()
    plain = ask_of(load_spec(SPEC, "gpujob.yaml"))
    assert plain.at("aws") is plain
    assert plain.image == "pytorch/pytorch:2.4.0"


@pytest.mark.parametrize(
    ("name", "docker"),
    [("pytorch/pytorch", True), ("ubuntu:24.04", True), ("ghcr.io/me/it@sha256:feed", True), ("ubuntu", False),
     ("ami-0123456789abcdef0", False), ("ssm:/aws/service/x", False), ("lambda-stack-24-04", False), ("", False)],
)  # fmt: skip
def test_which_names_are_dockers(name: str, docker: bool) -> None:
    assert is_docker_image(name) is docker


def test_an_ask_without_images_is_the_same_everywhere() -> None:
    assert Ask().at("aws") == Ask()

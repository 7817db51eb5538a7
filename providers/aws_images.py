"""Which machine image a rental starts from, who logs in there, and its disks.

Rules
- Without `image`: Amazon's Deep Learning image with PyTorch for GPUs, Ubuntu's own for CPUs, by the public parameters
  that always name the newest one.
- `image` is an id (`ami-...`), such a parameter (`ssm:/aws/service/...`), or a docker image, which the agent runs the
  job in on the default machine image for GPUs, since that one has docker.
- Every disk of an image goes with its machine, whatever the image says.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from providers.aws_api import NAME, Api, unreadable
from providers.base import is_docker_image
from providers.errors import Invalid
from providers.fields import at, rows, text, whole

#: Newest first: one that Amazon no longer publishes is passed over.
GPU_IMAGES = (
    "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.9-ubuntu-24.04/latest/ami-id",
    "/aws/service/deeplearning/ami/x86_64/oss-nvidia-driver-gpu-pytorch-2.7-ubuntu-22.04/latest/ami-id",
    "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-22.04/latest/ami-id",
)
CPU_IMAGES = ("/aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id",)
KEEP_S = 3600.0
#: What an image's name holds -> its login.
LOGINS = (("ubuntu", "ubuntu"), ("debian", "admin"), ("rocky", "rocky"), ("al20", "ec2-user"), ("amzn", "ec2-user"),
          ("amazon", "ec2-user"), ("rhel", "ec2-user"), ("suse", "ec2-user"), ("fedora", "fedora"))  # fmt: skip
USER = "ubuntu"
OWN = re.compile(r"ami-[0-9a-f]{8,17}|ssm:/[A-Za-z0-9_./-]+")


@dataclass(frozen=True)
class Image:
    """One machine image in one region."""

    id: str
    user: str
    root: str  # device name of the first disk
    size_gb: int  # the least size of that disk
    others: tuple[str, ...] = ()  # device names of further disks

    def disks(self, size_gb: int) -> Any:
        """Block devices of a launch."""
        first = {
            "DeviceName": self.root,
            "Ebs": {"VolumeSize": max(size_gb, self.size_gb), "VolumeType": "gp3", "DeleteOnTermination": True},
        }
        return [first, *({"DeviceName": name, "Ebs": {"DeleteOnTermination": True}} for name in self.others)]


def own_image(name: str) -> str:
    """`name` where it is an image of Amazon's; empty for the default and for a docker image, which needs that one."""
    if is_docker_image(name):
        return ""
    if name and not OWN.fullmatch(name):
        raise Invalid(
            f"AWS has no image {name!r}: write `ami-0123456789abcdef0`, `ssm:/aws/service/...`, or a docker image with "
            f"its registry or tag, such as docker.io/library/{name}",
            provider=NAME, what="offers",
        )  # fmt: skip
    return name


class Images:
    """Images of one account, by region. `user` of the config wins over what a name tells."""

    def __init__(self, api: Api, user: str) -> None:
        self._api, self._user = api, user
        self._kept: dict[tuple[str, str, bool], tuple[float, Image]] = {}
        self._lock = threading.Lock()

    def find(self, region: str, name: str, with_gpu: bool) -> Image:
        """The image that `name` means now; empty for the default. Raises `Invalid` where there is none."""
        key = (region, name, with_gpu)
        with self._lock:
            when, image = self._kept.get(key, (0.0, None))
        if image is None or time.monotonic() - when >= KEEP_S:
            image = self._described(region, self._id(region, name, with_gpu))
            with self._lock:
                self._kept[key] = (time.monotonic(), image)
        return image

    def _id(self, region: str, name: str, with_gpu: bool) -> str:
        if name.startswith("ami-"):
            return name
        choices = (name.removeprefix("ssm:"),) if name else GPU_IMAGES if with_gpu else CPU_IMAGES
        for last, choice in enumerate(choices, 1):
            try:
                answer = self._api.call(region, "image", "get_parameter", service="ssm", Name=choice)
            except Invalid as error:
                if last < len(choices) and error.evidence.startswith("ParameterNotFound"):
                    continue
                raise
            found = text(at(answer, "Parameter", "Value"))
            if found.startswith("ami-"):
                return found
            raise unreadable("image", f"{choice} is {found!r}")
        raise AssertionError("not reached")

    def _described(self, region: str, image: str) -> Image:
        answer = self._api.call(region, "image", "describe_images", ImageIds=[image])
        found = rows(answer.get("Images"))
        if not found:
            raise Invalid(f"{region} has no image {image}", provider=NAME, what="image")
        label = f"{text(found[0].get('Name'))} {text(found[0].get('Description'))}".lower()
        root = text(found[0].get("RootDeviceName")) or "/dev/sda1"
        sizes: dict[str, int] = {}
        for device in rows(found[0].get("BlockDeviceMappings")) or ():
            if isinstance(device.get("Ebs"), Mapping):
                sizes[text(device.get("DeviceName"))] = whole(at(device, "Ebs", "VolumeSize"))
        user = self._user or next((login for word, login in LOGINS if word in label), USER)
        return Image(image, user, root, sizes.get(root, 0), tuple(name for name in sizes if name != root))

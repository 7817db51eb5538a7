"""A docker image on a machine that is no container: what the agent is told so that it runs the stages inside."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jobspecs.schema import JobSpec
    from providers.base import Offer


def container_of(spec: JobSpec, offer: Offer) -> dict[str, Any]:
    """What the agent needs to run the stages in a docker image; empty where the machine is the image, or has none."""
    if not offer.container:
        return {}
    places = [entry.path for entry in spec.data]
    places += [spec.checkpoint.path] if spec.checkpoint is not None else []
    places += [artifact.path for artifact in spec.artifacts] if isinstance(spec.artifacts, tuple) else []
    # Of a pattern, the folder that it begins in; the root folder of an image stays its own.
    fixed = [re.split(r"[*?\[]", place)[0] for place in places if place.startswith("/")]
    mounts = [place if place in places else place.rpartition("/")[0] for place in fixed]
    return {
        "container": {
            "image": offer.container,
            "gpus": offer.gpu_count,
            "shm_bytes": spec.shm_size.bytes if spec.shm_size is not None else 0,
            "mounts": sorted({mount.rstrip("/") for mount in mounts} - {""}),
        }
    }

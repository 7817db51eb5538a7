"""Object stores: where checkpoints, artifacts and data lie when this computer sleeps.

settings    the config's `stores`; what `lab:prefix` and `s3://bucket/prefix` mean
base        what is asked of a store            s3        a bucket, over boto3
errors      missing, denied, refused, unreachable
probe       is it there, and may we write: asked before anything is rented
"""

from __future__ import annotations

from orchestrator.objects.base import Access, ObjectStore, Stored
from orchestrator.objects.errors import (
    StoreDenied,
    StoreError,
    StoreExists,
    StoreMissing,
    StoreRefused,
    StoreUnreachable,
)
from orchestrator.objects.settings import Location, StoreSettings, locate

__all__ = [
    "Access", "Location", "ObjectStore", "StoreDenied", "StoreError", "StoreExists", "StoreMissing", "StoreRefused",
    "StoreSettings", "StoreUnreachable", "Stored", "locate",
]  # fmt: skip

"""The config's `stores`, and what a place in a spec means: `lab:prefix`, or plain `s3://bucket/prefix`.

    stores:
      lab:
        url: s3://bucket/prefix
        endpoint: https://s3.example.org     left out: AWS, or AWS_ENDPOINT_URL_S3
        region: eu-west-1
        role_arn: arn:aws:iam::123456789012:role/gpujob-machine      what machines get a short-lived part of
        scoped_key: true                     machines get this key itself: only for one that can do nothing else
        profile: work                        a profile of ~/.aws instead of a key
        bandwidth: 100MB                     bytes a second that one machine sends at most; left out: no limit

Rules: a key never stands in the config. It is looked up as STORE_ACCESS_KEY_ID and STORE_SECRET_ACCESS_KEY (the store's
name in capitals, `-` as `_`), then AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY: environment, keyring, private file;
then in boto3's own places. Pure but for that lookup.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from orchestrator.objects.errors import StoreDenied, StoreRefused

if TYPE_CHECKING:
    from orchestrator.home import Home

KEYS = ("url", "endpoint", "region", "role_arn", "scoped_key", "profile", "bandwidth")
NAMED = re.compile(r"([A-Za-z][A-Za-z0-9_-]*):(?!/)(.*)\Z")
SECRET_PARTS = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")


@dataclass(frozen=True)
class StoreSettings:
    """One entry of `stores`. `name` is empty for a URL that no entry covers."""

    name: str
    url: str
    endpoint: str = ""
    region: str = ""
    role_arn: str = ""
    scoped_key: bool = False
    profile: str = ""
    bandwidth: str = ""

    @property
    def bandwidth_bytes(self) -> int:
        """Bytes a second of one machine at most; 0: no limit. Raises Refusal for what is no size."""
        from jobspecs.units import parse_size

        return parse_size(self.bandwidth).bytes if self.bandwidth else 0

    @property
    def bucket(self) -> str:
        """The bucket's name."""
        return urlsplit(self.url).netloc

    @property
    def prefix(self) -> str:
        """What all keys begin with, without slashes at its ends; may be empty."""
        return urlsplit(self.url).path.strip("/")


def same_bucket(one: StoreSettings, other: StoreSettings) -> bool:
    """Whether two entries mean the same bucket: at another endpoint the same name is another one's."""
    return (one.bucket, one.endpoint.rstrip("/")) == (other.bucket, other.endpoint.rstrip("/"))


@dataclass(frozen=True)
class Location:
    """A place in a store: `prefix` is the whole key prefix, without slashes at its ends."""

    settings: StoreSettings
    prefix: str

    @property
    def url(self) -> str:
        """As people write it."""
        return f"s3://{self.settings.bucket}/{self.prefix}".rstrip("/")

    def key(self, *parts: str) -> str:
        """The key of something below this place."""
        return "/".join(part for part in (self.prefix, *parts) if part)


def locate(place: str, stores: Mapping[str, StoreSettings]) -> Location:
    """Where a spec's `lab:prefix` or `s3://bucket/prefix` is. StoreRefused for a store that nobody configured."""
    named = NAMED.match(place)
    if named:
        settings = stores.get(named[1])
        if settings is None:
            known = ", ".join(sorted(stores)) or "none"
            raise StoreRefused(
                f"there is no store {named[1]!r}", place, f"configured: {known}", "add it below `stores` in config.yaml"
            )
        return Location(settings, _joined(settings.prefix, named[2]))
    parts = urlsplit(place)
    if parts.scheme != "s3" or not parts.netloc:
        raise StoreRefused(
            "this is no object store that gpujob writes to", place, "", "write s3://bucket/prefix, or NAME:prefix"
        )
    prefix = parts.path.strip("/")
    covering = [
        each
        for each in stores.values()
        if each.bucket == parts.netloc and (not each.prefix or f"{prefix}/".startswith(f"{each.prefix}/"))
    ]
    best = max(covering, key=lambda each: len(each.prefix), default=None)
    return Location(best or StoreSettings("", f"s3://{parts.netloc}"), prefix)


def _joined(first: str, second: str) -> str:
    return "/".join(part for part in (first, second.strip("/")) if part)


def key_names(settings: StoreSettings) -> tuple[str, ...]:
    """Prefixes of the variables in which the store's key is looked for, strongest first."""
    own = re.sub(r"[^A-Z0-9]", "_", settings.name.upper())
    return (f"{own}_", "AWS_") if own else ("AWS_",)


def find_key(settings: StoreSettings, home: Home | None, env: Mapping[str, str] | None = None) -> dict[str, str]:
    """boto3's arguments for the key of this store; empty: boto3 looks in its own places. StoreDenied for half a key."""
    from orchestrator.secrets import SecretError, resolve

    if settings.profile:
        return {}
    env = os.environ if env is None else env
    for start in key_names(settings):
        names = [start + part for part in SECRET_PARTS]
        try:
            found = resolve(names, home, env).values if home is not None else {n: env[n] for n in names if env.get(n)}
        except SecretError as error:
            raise StoreDenied("its key cannot be read", settings.url, str(error)) from error
        half = [name for name in names[:2] if name not in found]
        if len(half) == 1:
            raise StoreDenied("half of its key is missing", settings.url, half[0], f"gpujob secret set {half[0]}")
        if not half:
            shown = dict(zip(names, ("aws_access_key_id", "aws_secret_access_key", "aws_session_token"), strict=True))
            return {shown[name]: value for name, value in found.items()}
    return {}

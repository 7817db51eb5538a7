"""An S3 bucket: AWS, or any store that speaks its protocol, over boto3 (imported at first use).

Rules
- Only the plain client: boto3's CRT transfer client sends the data to AWS whatever endpoint is configured.
- Time limits are explicit; repeats are boto3's, few, and only for what the store did not decide.
- Presigned URLs are signed here (`agent.sigv4`): a thousand of them cost a few milliseconds.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import json
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.agent.sigv4 import PRESIGN_MAX_S, key_url, presigned
from orchestrator.objects.base import Access, Stored
from orchestrator.objects.errors import (
    StoreDenied,
    StoreError,
    StoreExists,
    StoreMissing,
    StoreRefused,
    StoreUnreachable,
)
from orchestrator.objects.settings import StoreSettings, find_key

if TYPE_CHECKING:
    from orchestrator.home import Home

CONNECT_S, READ_S = 10.0, 60.0
ATTEMPTS = 4
CONNECTIONS = 32
SMALL = 16 << 20  # bytes that `get` reads at most, unless told otherwise
BLOCK = 1 << 20
PART = 16 << 20  # bytes of one part of a large object from a file of this computer
STS_MIN_S, STS_MAX_S = 900, 12 * 3600  # what AssumeRole takes
STS_SURE_S = 3600  # what every role allows
MISSING = ("404", "NoSuchKey", "NoSuchBucket", "NotFound", "NoSuchUpload")
DENIED = (
    "403", "401", "AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken",
    "InvalidClientTokenId", "UnrecognizedClientException", "TokenRefreshRequired",
)  # fmt: skip
MD5 = re.compile(r"[0-9a-f]{32}\Z")


class S3Store:
    """One bucket. May be used by several threads."""

    def __init__(self, settings: StoreSettings, key: Mapping[str, str]) -> None:
        self._settings, self._key = settings, key
        self._lock = threading.Lock()
        self._clients: dict[str, Any] = {}
        self._session_: Any = None

    @property
    def url(self) -> str:
        """s3://bucket."""
        return f"s3://{self._settings.bucket}"

    @property
    def base_url(self) -> str:
        """The bucket's own URL."""
        client, bucket = self._client("s3"), self._settings.bucket
        endpoint: str = client.meta.endpoint_url.rstrip("/")
        if self._by_path(endpoint):
            return f"{endpoint}/{bucket}"
        scheme, _, host = endpoint.partition("://")
        return f"{scheme}://{bucket}.{host}"

    def _by_path(self, endpoint: str) -> bool:
        return bool(self._settings.endpoint) or "amazonaws.com" not in endpoint or "." in self._settings.bucket

    # --- objects ------------------------------------------------------------------------------------------------------

    def put(self, key: str, data: bytes, *, once: bool = False) -> Stored:
        """Write a small object."""
        more = {"IfNoneMatch": "*"} if once else {}
        digest = hashlib.sha256(data)
        with self._errors(key):
            self._s3.put_object(
                Bucket=self._settings.bucket, Key=key, Body=data,
                ChecksumSHA256=base64.b64encode(digest.digest()).decode(), **more,
            )  # fmt: skip
        return Stored(key, len(data), hashlib.md5(data, usedforsecurity=False).hexdigest(), digest.hexdigest())

    def get(self, key: str, limit: int = SMALL) -> bytes:
        """Read a small object."""
        with self._errors(key):
            body = self._s3.get_object(Bucket=self._settings.bucket, Key=key)["Body"]
            with contextlib.closing(body):
                data: bytes = body.read(limit + 1)
        if len(data) > limit:
            raise StoreRefused(f"it has more than {limit} bytes", self._where(key))
        return data

    def get_to(self, key: str, path: Path) -> str:
        """Read an object into a file, which is whole or not there."""
        half = path.with_name(f".{path.name}.part")
        digest = hashlib.sha256()

        def take(block: bytes) -> None:
            digest.update(block)
            out.write(block)

        try:
            with half.open("wb") as out:
                self._read(key, take)
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
        return digest.hexdigest()

    def sha256(self, key: str) -> str:
        """Read an object for its hash."""
        digest = hashlib.sha256()
        self._read(key, digest.update)
        return digest.hexdigest()

    def _read(self, key: str, take: Callable[[bytes], object]) -> None:
        with self._errors(key):
            body = self._s3.get_object(Bucket=self._settings.bucket, Key=key)["Body"]
            with contextlib.closing(body):
                for block in iter(lambda: body.read(BLOCK), b""):
                    take(block)

    def put_from(self, path: Path, key: str) -> Stored:
        """Write an object from a file: at once, or in parts where it is large."""
        size = path.stat().st_size
        if size <= PART:
            return self.put(key, path.read_bytes())
        upload = self.multipart_start(key)
        etags, digest = [], hashlib.sha256()
        try:
            with path.open("rb") as file:
                for number, block in enumerate(iter(lambda: file.read(PART), b""), 1):
                    digest.update(block)
                    with self._errors(key):
                        part = self._s3.upload_part(
                            Bucket=self._settings.bucket, Key=key, UploadId=upload, PartNumber=number, Body=block
                        )
                    etags.append(part["ETag"])
            self.multipart_complete(key, upload, etags)
        except BaseException:
            with contextlib.suppress(StoreError):
                self.multipart_abort(key, upload)
            raise
        return Stored(key, size, "", digest.hexdigest())

    def head(self, key: str) -> Stored | None:
        """What the store says of an object."""
        try:
            with self._errors(key):
                found = self._s3.head_object(Bucket=self._settings.bucket, Key=key, ChecksumMode="ENABLED")
        except StoreMissing:
            return None
        digest = found.get("ChecksumSHA256", "")
        sha256 = base64.b64decode(digest).hex() if digest and "-" not in digest else ""  # "-": of parts, not of bytes
        etag = found.get("ETag", "").strip('"')
        md5 = etag if MD5.match(etag) else ""
        return Stored(key, found["ContentLength"], md5, sha256, found["LastModified"].timestamp(), etag)

    def list(self, prefix: str) -> tuple[Stored, ...]:
        """All pages, or an error."""
        found: list[Stored] = []
        token: dict[str, str] = {}
        while True:
            with self._errors(prefix):
                page = self._s3.list_objects_v2(Bucket=self._settings.bucket, Prefix=prefix, **token)
            for row in page.get("Contents", ()):
                etag = row.get("ETag", "").strip('"')
                md5 = etag if MD5.match(etag) else ""
                found.append(Stored(row["Key"], row["Size"], md5, "", row["LastModified"].timestamp(), etag))
            if not page.get("IsTruncated"):
                return tuple(found)
            if not page.get("NextContinuationToken"):
                raise StoreUnreachable("the listing broke off", self._where(prefix), "a page without its successor")
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects, one call each: not every store knows the call for many."""
        for key in keys:
            with contextlib.suppress(StoreMissing), self._errors(key):
                self._s3.delete_object(Bucket=self._settings.bucket, Key=key)

    # --- for others ---------------------------------------------------------------------------------------------------

    def presign_get(self, key: str, seconds: int) -> str:
        """A URL that reads one object."""
        return presigned("GET", key_url(self.base_url, key), self._signing(), seconds, time.time())

    def presign_put(self, key: str, seconds: int, headers: Mapping[str, str] | None = None) -> str:
        """A URL that writes one object."""
        return presigned("PUT", key_url(self.base_url, key), self._signing(), seconds, time.time(), headers)

    def multipart_start(self, key: str) -> str:
        """Begin an object in parts."""
        with self._errors(key):
            answer = self._s3.create_multipart_upload(Bucket=self._settings.bucket, Key=key)
        upload: str = answer["UploadId"]
        return upload

    def multipart_presign(self, key: str, upload: str, number: int, seconds: int) -> str:
        """A URL that writes one part."""
        url = f"{key_url(self.base_url, key)}?partNumber={number}&uploadId={upload}"
        return presigned("PUT", url, self._signing(), seconds, time.time())

    def multipart_complete(self, key: str, upload: str, etags: Iterable[str]) -> None:
        """Join the parts."""
        parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
        with self._errors(key):
            self._s3.complete_multipart_upload(
                Bucket=self._settings.bucket, Key=key, UploadId=upload, MultipartUpload={"Parts": parts}
            )

    def multipart_abort(self, key: str, upload: str) -> None:
        """Forget the parts."""
        with contextlib.suppress(StoreMissing), self._errors(key):
            self._s3.abort_multipart_upload(Bucket=self._settings.bucket, Key=key, UploadId=upload)

    def access(self, prefix: str, seconds: int, name: str) -> Access:
        """A short-lived part of the role, the scoped key itself, or nothing but presigned URLs."""
        if self._settings.role_arn:
            return self._assumed(prefix, seconds, name)
        keys = self._signing()
        if self._settings.scoped_key:
            return Access(keys, None, "scoped")
        # A URL dies with the key that signed it: of a session's own key nobody but its maker knows the end
        longest = PRESIGN_MAX_S if not keys["token"] else STS_SURE_S
        return Access({}, time.time() + min(seconds, longest), "presigned")

    def _assumed(self, prefix: str, seconds: int, name: str) -> Access:
        policy = json.dumps(machine_policy(self._settings.bucket, prefix, self._partition))
        wanted = max(STS_MIN_S, min(STS_MAX_S, seconds))
        for duration in dict.fromkeys((wanted, min(wanted, STS_SURE_S))):
            try:
                with self._errors(prefix):
                    found = self._client("sts").assume_role(
                        RoleArn=self._settings.role_arn, RoleSessionName=name[:64], Policy=policy,
                        DurationSeconds=duration,
                    )["Credentials"]  # fmt: skip
            except StoreRefused:
                if duration <= STS_SURE_S:
                    raise
                continue  # longer than this role allows
            keys = {
                "access": found["AccessKeyId"], "secret": found["SecretAccessKey"], "token": found["SessionToken"],
                "region": self._region,
            }  # fmt: skip
            return Access(keys, found["Expiration"].timestamp(), "sts")
        raise AssertionError("every duration was tried")

    # --- boto3 --------------------------------------------------------------------------------------------------------

    @property
    def _s3(self) -> Any:
        return self._client("s3")

    @property
    def _region(self) -> str:
        region: str = self._client("s3").meta.region_name or "us-east-1"
        return region if region != "aws-global" else "us-east-1"

    @property
    def _partition(self) -> str:
        partition: str = self._client("s3").meta.partition or "aws"
        return partition

    def _signing(self) -> dict[str, str]:
        """The account's own key, in the form of `sigv4`."""
        with self._errors(""):
            found = self._session().get_credentials()
            if found is None:
                raise self._no_key()
            frozen = found.get_frozen_credentials()
        return {
            "access": frozen.access_key, "secret": frozen.secret_key, "token": frozen.token or "",
            "region": self._region,
        }  # fmt: skip

    def _session(self) -> Any:
        if self._session_ is None:
            with self._errors(""):
                try:
                    import boto3.session
                except ImportError as error:
                    raise StoreRefused(
                        "object stores need boto3, which is not installed",
                        self.url,
                        "",
                        "install gpujob with its extra `aws`",
                    ) from error
                more = {"profile_name": self._settings.profile} if self._settings.profile else {}
                self._session_ = boto3.session.Session(region_name=self._settings.region or None, **self._key, **more)
        return self._session_

    def _client(self, service: str) -> Any:
        with self._lock:  # making one is not thread-safe, using one is
            if service not in self._clients:
                with self._errors(""):
                    self._clients[service] = self._new_client(service)
            return self._clients[service]

    def _new_client(self, service: str) -> Any:
        session = self._session()
        from botocore.config import Config

        config = Config(
            signature_version="s3v4" if service == "s3" else "v4",  # presigned URLs of custom endpoints need it
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            retries={"total_max_attempts": ATTEMPTS, "mode": "standard"},
            max_pool_connections=CONNECTIONS,
            s3={"addressing_style": "path" if self._settings.endpoint else "auto"},
            request_checksum_calculation="when_required",  # others than AWS refuse trailing checksums
            response_checksum_validation="when_required",
        )
        region = self._settings.region or session.region_name or "us-east-1"
        return session.client(service, endpoint_url=self._settings.endpoint or None, region_name=region, config=config)

    def _where(self, key: str) -> str:
        return f"{self.url}/{key}".rstrip("/")

    def _no_key(self) -> StoreDenied:
        name = self._settings.name.upper().replace("-", "_") if self._settings.name else "AWS"
        return StoreDenied(
            "there is no key for it", self.url, "",
            f"gpujob secret set {name}_ACCESS_KEY_ID and {name}_SECRET_ACCESS_KEY, or export them",
        )  # fmt: skip

    @contextlib.contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Everything that boto3 raises, as an error of ours."""
        try:
            yield
        except StoreError:
            raise
        except ImportError:
            raise
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise StoreRefused(
                    "the disk of this computer is full", self._where(key), str(error), "make room, then repeat it"
                ) from error
            raise StoreUnreachable("reading or writing broke off", self._where(key), str(error)) from error
        except Exception as error:  # botocore's are not imported until it is; all others go on up
            told = _told(error, self._where(key), self._no_key)
            if told is None:
                raise
            raise told from error


def _literal(key: str) -> str:
    """A key in a policy's resource, where `*`, `?` and `$` would mean more than themselves."""
    return re.sub(r"[*?$]", lambda found: f"${{{found[0]}}}", key)


def machine_policy(bucket: str, prefix: str, partition: str = "aws") -> dict[str, Any]:
    """What a machine may do: read and write below its own prefix; delete and list nothing."""
    own = f"arn:{partition}:s3:::{bucket}/{_literal(prefix.rstrip('/'))}/*"
    actions = ["s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"]
    return {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": [own]}]}


def _told(error: Exception, where: str, no_key: Callable[[], StoreDenied]) -> StoreError | None:
    """An error of botocore's as one of ours; None when it is not botocore's."""
    try:
        from botocore import exceptions as boto
    except ImportError:
        return None
    if isinstance(error, boto.NoCredentialsError | boto.PartialCredentialsError | boto.TokenRetrievalError):
        return no_key()
    if isinstance(error, boto.ClientError):
        return _by_code(error.response, where, str(error))
    if isinstance(error, boto.ParamValidationError | boto.ProfileNotFound | boto.NoRegionError | ValueError):
        return StoreRefused("the request cannot be made", where, str(error))
    if isinstance(error, boto.HTTPClientError | boto.BotoCoreError):
        return StoreUnreachable(
            "it does not answer", where, str(error), "check `endpoint` in the config, and the network"
        )
    return None


def _by_code(response: Mapping[str, Any], where: str, said: str) -> StoreError:
    """The store's own word."""
    code = str(response.get("Error", {}).get("Code", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    why = str(response.get("Error", {}).get("Message") or said)
    if code in ("PreconditionFailed", "412", "ConditionalRequestConflict"):
        return StoreExists("there is one already", where, why, code=code)
    if code == "RequestTimeTooSkewed":
        return StoreRefused("this computer's clock is wrong", where, why, "set the time (NTP)", code)
    if code == "NoSuchBucket":
        return StoreMissing("there is no such bucket", where, why, "create it, or correct `url` in the config", code)
    if code in MISSING or status == 404:
        return StoreMissing("it is not there", where, why, code=code)
    if code in DENIED or status in (401, 403):
        return StoreDenied("the key may not do this", where, f"{code}: {why}", "check the key and its rights", code)
    if code in ("AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"):
        region = response.get("Error", {}).get("Region", "")
        hint = f"write region: {region}" if region else "write the bucket's region in the config"
        return StoreRefused("the bucket is in another region", where, why, hint, code)
    if status >= 500 or code in ("SlowDown", "Throttling", "RequestTimeout", "InternalError"):
        return StoreUnreachable("the store has trouble of its own", where, f"{code}: {why}", code=code)
    return StoreRefused("it refused", where, f"{code}: {why}", code=code)


def open_store(settings: StoreSettings, home: Home | None) -> S3Store:
    """The store of an entry, with its key looked up. StoreDenied for half a key; nothing is sent."""
    return S3Store(settings, find_key(settings, home))

"""Calls to Amazon's API through boto3: credentials, clients, one request, all pages, and what an error means.

Rules
- boto3's own retries are off: one call is one request, but for a read whose kept connection had died, once.
- Credentials are those that boto3 finds; the environment wins, then `profile` of the config, then what `gpujob login`
  keeps (first, with `credentials: kept`), then files, SSO and roles. They are looked up at each call, so a new login
  needs no restart.
- After "too many requests" nothing of that kind is sent to that region until its time has passed, for all jobs of the
  account. A destroy is never held back.
- A code decides before the HTTP status: lack of machines is said with a status of 500.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from typing import Any

from providers.base import ProviderConfig
from providers.errors import (
    AccountGate,
    Ambiguous,
    AuthFailed,
    Invalid,
    NoCapacity,
    PoolQuotaExceeded,
    ProviderError,
    RateLimited,
)
from providers.fields import number, rows, text

NAME = "aws"
KEY = "AWS_LOGIN_KEY"  # what `gpujob login aws` keeps: ID and secret, a space between
CONNECT_S, READ_S = 10.0, 25.0
CREATE_READ_S = 60.0  # a launch may take its time, and its answer is worth waiting for
REST_S = 5.0  # "too many requests" comes without a time; buckets fill by some requests a second
PAGES_MAX = 10_000
EVIDENCE_MAX = 300
SESSIONS_MAX = 8  # of one process; each holds a description of the API, which takes a third of a second to read
READS = frozenset({"list", "get", "offers", "image"})

_CODES: tuple[tuple[type[ProviderError], str], ...] = (
    (NoCapacity, r"Insufficient(Instance|Host|ReservedInstance|Address)?Capacity|InsufficientFreeAddresses(InSubnet)?"
                 r"|SpotMaxPriceTooLow|Unsupported|InsufficientVolumeCapacity|MaxSpotPriceTooLow"),
    (PoolQuotaExceeded, r"VcpuLimitExceeded|MaxSpotInstanceCountExceeded|\w+LimitExceeded|MaxConfigLimitExceeded"),
    (RateLimited, r"RequestLimitExceeded|Throttl\w+|EC2ThrottledException|TooManyRequests\w*|SlowDown"),
    (AccountGate, r"OptInRequired|PendingVerification|Blocked|AccountDisabled|AccountProblem|SubscriptionRequired\w*"
                  r"|AuthFailure\.ServiceLinkedRole\w+"),
    (AuthFailed, r"AuthFailure|Unauthorized\w*|AccessDenied\w*|InvalidClientTokenId|SignatureDoesNotMatch|Expired\w*"
                 r"|RequestExpired|IncompleteSignature|MissingAuthenticationToken|UnrecognizedClientException"
                 r"|InvalidAccessKeyId|NotSignedUp|OperationNotPermitted\.Region"),
    (Ambiguous, r"IdempotentParameterMismatch|Internal\w*|Unavailable|ServiceUnavailable|RequestTimeout\w*"
                r"|DependencyViolation|IncorrectState|IncorrectInstanceState|VolumeInUse|ResourceInUse\w*"),
    (Invalid, r"Invalid.+|Missing\w+|Unknown\w+|Malformed\w+|UnsupportedOperation|ValidationE\w+|ParameterNotFound"
              r"|VPC\w+|DryRunOperation"),
)  # fmt: skip
# "RequestLimitExceeded" is a rate and ends like a quota.
_RATES = re.compile(_CODES[2][1])

_sessions: dict[tuple[str, ...], Any] = {}
_sessions_lock = threading.Lock()


class Api:
    """One account. Thread-safe."""

    def __init__(self, config: ProviderConfig) -> None:
        self._config = config
        self._lock = threading.Lock()
        self._identity: tuple[str, ...] = ()
        self._clients: dict[tuple[str, str, bool], Any] = {}
        self._resting: dict[tuple[str, str], float] = {}

    def call(self, region: str, what: str, operation: str, *, service: str = "ec2", **more: Any) -> dict[str, Any]:
        """One request. `what` is the verb that it serves; raises from `providers.errors`."""
        self.turn(region, what)
        try:
            from botocore.exceptions import BotoCoreError, ClientError, ConnectionClosedError
            from botocore.parsers import ResponseParserError
        except ImportError as error:
            raise Invalid(
                "renting at AWS needs boto3: install gpujob with its extra `aws`, as docs/how-to/use-aws.md shows",
                provider=NAME, what="import",
            ) from error  # fmt: skip

        for left in (1, 0) if what in READS else (0,):
            try:
                answer = getattr(self._client(region, service, what), operation)(**more)
            except ConnectionClosedError as error:
                if not left:
                    raise problem(error, what) from None
            except ClientError as error:
                found = judge(error.response, what)
                if isinstance(found, RateLimited):
                    self._rest(region, what, found.retry_after_s or REST_S)
                raise found from None
            except (BotoCoreError, ResponseParserError, ValueError) as error:  # ValueError: no address
                raise problem(error, what) from None
            else:
                return dict(answer)
        raise AssertionError("not reached")

    def pages(self, region: str, what: str, operation: str, key: str, **more: Any) -> list[Mapping[str, Any]]:
        """`key` of every page, or an error: a part is never returned."""
        found: list[Mapping[str, Any]] = []
        token = ""
        for _ in range(PAGES_MAX):
            answer = self.call(region, what, operation, **more, **({"NextToken": token} if token else {}))
            page = rows(answer.get(key))
            if page is None:
                raise unreadable(what, f"{operation} without {key}")
            found += page
            before, token = token, text(answer.get("NextToken"))
            if not token:
                return found
            if token == before:
                break
        raise unreadable(what, f"{operation} gives pages without end")

    def _client(self, region: str, service: str, what: str) -> Any:
        patient = what == "create"
        with self._lock:
            identity = self._who()
            if identity != self._identity:
                self._identity, self._clients = identity, {}
            made = self._clients.get((region, service, patient))
            if made is None:
                made = self._clients[(region, service, patient)] = self._new_client(region, service, patient)
            return made

    def _who(self) -> tuple[str, ...]:
        """What the credentials hang on; a change makes new clients."""
        names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
        environment = tuple(os.environ.get(name, "") for name in names)
        profile = text(self._config.settings.get("profile"))
        kept = self._config.secret(KEY) or ""
        if self._config.settings.get("credentials") == "kept":
            return ("", "", "", "", "", kept or "none")
        return (*environment, profile, "" if environment[0] or environment[3] or profile else kept)

    def _new_client(self, region: str, service: str, patient: bool) -> Any:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        *environment, profile, kept = self._identity
        keys: dict[str, str] = {}
        if kept:
            words = kept.replace(":", " ").split()
            if len(words) != 2:
                raise AuthFailed("the kept key of aws is not an id and a secret: gpujob login aws", provider=NAME)
            keys = {"aws_access_key_id": words[0], "aws_secret_access_key": words[1]}
        try:
            with _sessions_lock:  # a session is not thread-safe
                session = _sessions.get(self._identity)
                if session is None:
                    named = {"profile_name": profile} if profile and not environment[0] else {}
                    while len(_sessions) >= SESSIONS_MAX:
                        _sessions.pop(next(iter(_sessions)))
                    session = _sessions[self._identity] = boto3.session.Session(**named, **keys)
                return session.client(
                    service,
                    region_name=region,
                    endpoint_url=text(self._config.settings.get("url")) or None,
                    config=Config(
                        connect_timeout=CONNECT_S,
                        read_timeout=CREATE_READ_S if patient else READ_S,
                        retries={"total_max_attempts": 1},
                        user_agent_extra="gpujob",
                    ),
                )
        except (BotoCoreError, ValueError) as error:
            raise problem(error, "login") from None

    def turn(self, region: str, what: str) -> None:
        """Raises `RateLimited` while Amazon's own time for such calls has not passed."""
        with self._lock:
            left = self._resting.get((region, what), 0.0) - time.monotonic()
        if left > 0 and what != "destroy":
            raise RateLimited(
                f"aws {region} is asked again for {what} in {left:.0f} s: its rate limit",
                retry_after_s=left, provider=NAME, what=what,
            )  # fmt: skip

    def _rest(self, region: str, what: str, seconds: float) -> None:
        with self._lock:
            self._resting[(region, what)] = time.monotonic() + seconds


def judge(response: Mapping[str, Any], what: str) -> ProviderError:
    """The class of an error that Amazon said."""
    said = response.get("Error")
    code, words = (text(said.get(part)) for part in ("Code", "Message")) if isinstance(said, Mapping) else ("", "")
    more = response.get("ResponseMetadata")
    meta = more if isinstance(more, Mapping) else {}
    status = meta.get("HTTPStatusCode")
    words = re.sub(r"\s*Encoded authorization failure message:.*", "", " ".join(words.split()))[:EVIDENCE_MAX]
    told: dict[str, Any] = {"provider": NAME, "what": what, "evidence": f"{code}: {words}"}
    code = code.removeprefix("Client.").removeprefix("Server.")
    kind = next((kind for kind, pattern in _CODES if re.fullmatch(pattern, code)), None)
    if _RATES.fullmatch(code) or (kind is None and status == 429):
        kind = RateLimited
    if kind is None:
        refused = isinstance(status, int) and 400 <= status < 500 and status not in (408, 425)
        kind = Invalid if refused else Ambiguous
    if what == "destroy" and kind in (Invalid, NoCapacity, PoolQuotaExceeded):
        kind = Ambiguous  # refused for an unknown reason: to be tried again
    sentence = f"AWS {'failed at' if kind is Ambiguous else 'refused'} {what}: {words or 'no reason given'} ({code})"
    if kind is AuthFailed:
        return AuthFailed(f"{sentence}; see docs/how-to/use-aws.md for the rights, or `gpujob login aws`", **told)
    if kind is RateLimited:
        headers = meta.get("HTTPHeaders")
        wait = number(headers.get("retry-after")) if isinstance(headers, Mapping) else None
        return RateLimited(sentence, retry_after_s=float(wait) if wait is not None else REST_S, **told)
    return kind(sentence, **told)


def is_missing(error: ProviderError) -> bool:
    """Whether the error says that there is no such thing, or never can be."""
    return re.match(r"Invalid\w+(\.NotFound|\.Malformed|Malformed|NotFound)|InvalidParameterValue: .*does not exist",
                    error.evidence) is not None  # fmt: skip


def problem(error: Exception, what: str) -> ProviderError:
    """The class of what went wrong between boto3 and Amazon."""
    name, words = type(error).__name__, " ".join(str(error).split())[:EVIDENCE_MAX]
    told: dict[str, Any] = {"provider": NAME, "what": what, "evidence": f"{name}: {words}"}
    if "Credential" in name or "SSO" in name or "Token" in name or name in ("ProfileNotFound", "LoginError"):
        return AuthFailed(
            f"there are no credentials for aws ({words}): run `gpujob login aws`, or set what boto3 reads", **told
        )
    if name in ("ParamValidationError", "ValueError"):
        return Invalid(f"AWS cannot be asked for {what}: {words}", **told)
    return Ambiguous(f"AWS did not answer to {what}: {words}", **told)


def unreadable(what: str, words: str) -> Ambiguous:
    """An answer that does not say what it must."""
    return Ambiguous(f"aws gave an answer to {what} that cannot be read: {words}", provider=NAME, what=what)

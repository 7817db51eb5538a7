"""What can go wrong at a provider: a closed tree, because the reaction hangs on the class alone.

    ProviderError
    ├── Refused          nothing was made, and the provider said so
    │   ├── NoCapacity   none free now: the next offer may work
    │   ├── QuotaExceeded   this account may not: no other offer of this account will work
    │   │   └── PoolQuotaExceeded   nor this region, family or market; others of the account may
    │   ├── NoFunds      the balance is too low
    │   ├── AuthFailed   the key is wrong, expired or lacks a right
    │   ├── AccountGate  identity check, terms to accept, waiting list: a person must act
    │   ├── Invalid      the request itself is wrong: repeating it cannot help
    │   └── RateLimited  asked too often: wait `retry_after_s`
    └── Ambiguous        time-out, reset, 5xx, unreadable body: it may or may not have happened

A create that ends in `Ambiguous` is settled by looking for the tag, never by another create.
"""

from __future__ import annotations


class ProviderError(Exception):
    """Base of everything an adapter may raise; `provider` and `what` locate it for the user."""

    kind = "provider"

    def __init__(self, message: str, *, provider: str = "", what: str = "", evidence: str = "") -> None:
        super().__init__(message)
        self.provider = provider
        self.what = what
        self.evidence = evidence  # the provider's own words, cut to what helps; never a secret


class Refused(ProviderError):
    """The provider answered that nothing was done."""

    kind = "refused"


class NoCapacity(Refused):
    """None free in this pool at the moment."""

    kind = "no-capacity"


class QuotaExceeded(Refused):
    """An account limit; the message names it."""

    kind = "quota"


class PoolQuotaExceeded(QuotaExceeded):
    """A limit of one region, family or market: another offer of the same account may work."""


class NoFunds(Refused):
    """The balance does not cover the rental."""

    kind = "funds"


class AuthFailed(Refused):
    """The credentials were not accepted."""

    kind = "auth"


class AccountGate(Refused):
    """The account is not cleared for this; a person must do something at the provider."""

    kind = "account-gate"


class Invalid(Refused):
    """The request is malformed or names something that does not exist."""

    kind = "invalid"


class RateLimited(Refused):
    """Too many requests; `retry_after_s` is the provider's word, or None."""

    kind = "rate-limit"

    def __init__(
        self,
        message: str,
        *,
        retry_after_s: float | None = None,
        provider: str = "",
        what: str = "",
        evidence: str = "",
    ) -> None:
        super().__init__(message, provider=provider, what=what, evidence=evidence)
        self.retry_after_s = retry_after_s


class Ambiguous(ProviderError):
    """Nobody knows whether it happened: look for the tag before doing anything else."""

    kind = "ambiguous"

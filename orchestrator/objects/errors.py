"""What can go wrong with an object store; every error says what, where, why, and the next step.

StoreError
├── StoreMissing       the bucket or the object is not there
├── StoreDenied        no key, a wrong key, or one without the right
├── StoreRefused       the store understood and will not: a condition, a clock, a limit, a name
│   └── StoreExists    a conditional write found the object there already
└── StoreUnreachable   no answer, a broken one, or the store's own trouble: worth another try
"""

from __future__ import annotations


class StoreError(Exception):
    """Something is wrong with an object store. `where` is its URL, `code` the store's own word."""

    def __init__(self, what: str, where: str, why: str = "", next: str = "", code: str = "") -> None:
        text = f"{where}: {what}" + (f": {why}" if why else "") + (f"; next: {next}" if next else "")
        super().__init__(text)
        self.what, self.where, self.why, self.next, self.code = what, where, why, next, code


class StoreMissing(StoreError):
    """The bucket or the object is not there."""


class StoreDenied(StoreError):
    """No key, a wrong key, or one without the right."""


class StoreRefused(StoreError):
    """The store understood and will not."""


class StoreExists(StoreRefused):
    """A conditional write found an object there already."""


class StoreUnreachable(StoreError):
    """No answer, a broken one, or the store's own trouble."""

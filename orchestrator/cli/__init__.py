"""The command line: one module a verb group, imported only when its verb is typed.

Rules: verbs read the books and append requests; they never write anything else (`client`). Data goes to stdout,
progress and errors to stderr; every number of `exits` means one thing.
"""

from __future__ import annotations

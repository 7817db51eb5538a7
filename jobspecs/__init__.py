"""What the user asked for: the spec, its grammar and its errors.

Role: everything that can be said about a job before any provider is asked. This package imports nothing of the
other two, starts nothing and talks to nobody.

Rules: importing the package must stay free of pydantic and yaml (the command line imports it on every start),
so nothing is re-exported here. Import the module that you need: `jobspecs.load`, `jobspecs.schema`,
`jobspecs.units`, `jobspecs.gpus`, `jobspecs.rules`, `jobspecs.files`, `jobspecs.lint`, `jobspecs.convert`.
"""

from __future__ import annotations

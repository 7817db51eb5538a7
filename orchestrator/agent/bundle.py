"""Joins the agent's modules into the one file that is pushed to a machine.

The modules stay small and are tested as modules; on the machine there is one file that any Python 3.8 can start.
Joining is plain: module after module, in the order of their imports, without the imports of each other.
"""

from __future__ import annotations

import ast
import hashlib
from functools import lru_cache
from pathlib import Path

# Each imports only from those before it; the last one is the program's entry.
MODULES = (
    "layout",
    "sigv4",
    "wire",
    "files",
    "ends",
    "events",
    "processes",
    "machine",
    "runs",
    "names",
    "pickles",
    "formats",
    "best",
    "checkpoints",
    "stage_log",
    "afterlook",
    "smoke",
    "container",
    "wrapper",
    "metadata",
    "deadman",
    "launch",
    "sampler",
    "asks",
    "inventory",
    "pieces",
    "upload",
    "supervisor",
    "status",
    "cards",
    "preflight",
    "commands",
    "landing",
    "web",
    "fetch",
    "arrival",
    "transfer",
    "stream",
    "door",
)

_HERE = Path(__file__).parent
_PACKAGE = "orchestrator.agent."
_ENTRY = '\n\nif __name__ == "__main__":\n    sys.exit(main(sys.argv))\n'


def _body(name: str) -> str:
    """The module's text without its imports of our own modules and of `__future__`, which must come first."""
    text = (_HERE / f"{name}.py").read_text(encoding="utf-8")
    lines = text.splitlines()
    for node in ast.parse(text).body:
        ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith((_PACKAGE, "__future__"))
        if ours:
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    rule = "# " + f"--- {name} ".ljust(100, "-")
    return rule + "\n\n" + "\n".join(lines).strip() + "\n"


@lru_cache(maxsize=1)
def agent_source() -> bytes:
    """The bytes of `agent.py`, to be written to ~/.gpujob/agent.py by rename."""
    head = "from __future__ import annotations\n\n"
    return (head + "\n\n".join(_body(name) for name in MODULES) + _ENTRY).encode()


def agent_version() -> str:
    """First 16 hex digits of the source's SHA-256; `status` answers the same in `version`."""
    return hashlib.sha256(agent_source()).hexdigest()[:16]

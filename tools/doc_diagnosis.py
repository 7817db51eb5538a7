"""The table of failure classes in docs/how-to/read-a-diagnosis.md, from the table that `gpujob diagnose` runs on."""

from __future__ import annotations

from orchestrator.cli.diagnose import reaction_words
from orchestrator.diagnosis.table import table


def classes_table() -> str:
    """One row a class: what it is, what is tried again by itself, and how many messages are known."""
    known = table()
    rows = ["| class | what it is | tried again | messages known |", "|---|---|---|---|"]
    for kind in known.kinds.values():
        count = sum(1 for one in known.signatures if one.kind is kind and not one.wrapper)
        again = reaction_words(kind.reaction).removesuffix(": the same would happen again")
        rows.append(f"| {kind.name} | {kind.says} | {again} | {count} |")
    return "\n".join(rows)

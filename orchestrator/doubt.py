"""What is said of books that are in doubt, by the controller and by the verbs alike."""

from __future__ import annotations

from collections.abc import Mapping

from orchestrator.books import Verdict

DOUBTS: Mapping[Verdict, str] = {
    Verdict.BEHIND: "the books (gpujob.db) are an older copy than the last ones used",
    Verdict.LOST: "the books (gpujob.db) are new or unreadable, where machines were rented before",
}

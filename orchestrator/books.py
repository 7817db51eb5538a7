"""What must outlive the database: the deployment's id, the highest epoch, how much has ever happened.

It is one small JSON file in the config folder (`config/deployment`), replaced atomically and synced. With it a
controller notices that its database is a week-old copy, or new where there was one: then machines may run of which
the books know nothing, and the controller only reads until the user runs `audit` or `adopt`.

The epoch alone would not show a copy made and put back within the life of one controller; the count of milestones does
(rentals opened, rentals gone, jobs over), since no such row is ever deleted. The database is always written first: a
crash between the two leaves it ahead.
"""

from __future__ import annotations

import json
import os
import secrets
import string
from dataclasses import asdict, dataclass, replace
from enum import StrEnum

from orchestrator.home import Home

ID_LETTERS = string.ascii_lowercase + string.digits  # a deployment is part of machine names at every provider
ID_LENGTH = 6


class BooksBroken(Exception):
    """The deployment file cannot be read; the message says which and what to do."""


class Verdict(StrEnum):
    """How the database stands to what is known outside of it."""

    OK = "ok"
    BEHIND = "behind"  # an older copy: it was ahead once
    LOST = "lost"  # new or another deployment's, where machines were rented before


@dataclass(frozen=True)
class _Kept:
    deployment: str
    epoch: int = 0
    milestones: int = 0
    doubt: str = ""  # a verdict that nobody has answered yet


class Books:
    """The file, read once and written through."""

    def __init__(self, home: Home, *, known_deployment: str = "") -> None:
        """Reads the file, or makes it; a lost file takes over `known_deployment`, the id in the database.

        Raises `BooksBroken` when the file is there but says nothing usable.
        """
        self._file = home.deployment_file
        home.make()
        kept = self._read()
        if kept is None:
            kept = _Kept(known_deployment or "".join(secrets.choice(ID_LETTERS) for _ in range(ID_LENGTH)))
            self._write(kept, exclusive=True)
            kept = self._read() or kept  # another process may have been first
        self._kept = kept

    @property
    def deployment(self) -> str:
        """Six of [a-z0-9]: part of the tag of everything we rent."""
        return self._kept.deployment

    @property
    def epoch(self) -> int:
        """The highest epoch that a controller ever took."""
        return self._kept.epoch

    @property
    def milestones(self) -> int:
        """How many milestones the database is known to have held: rentals opened and gone, jobs over."""
        return self._kept.milestones

    def next_epoch(self, now_ms: int, stored: int = 0) -> int:
        """An epoch above all known ones (`stored` is the database's) and not below the time, so that it grows across
        computers as well. It is recorded by `record`, after the database has it.
        """
        return max(self._kept.epoch + 1, stored + 1, now_ms)

    def record(self, epoch: int) -> None:
        """Keep the highest epoch."""
        if epoch > self._kept.epoch:
            self._keep(replace(self._kept, epoch=epoch))

    def note_milestones(self, count: int) -> None:
        """Keep the highest count of milestones; called before a create can leave."""
        if count > self._kept.milestones:
            self._keep(replace(self._kept, milestones=count))

    def check(self, epoch: int, deployment: str, milestones: int) -> Verdict:
        """Compare with what the database says of itself: 0, "" and 0 for a new or missing one.

        A bad verdict stays until `accept`: the controller that finds it takes the books over with a new epoch, after
        which the comparison alone would find nothing any more.
        """
        found = self.look(epoch, deployment, milestones)
        if found is not Verdict.OK and not self._kept.doubt:
            self._keep(replace(self._kept, doubt=found.value))
        return found

    def look(self, epoch: int, deployment: str, milestones: int) -> Verdict:
        """What `check` finds, for a verb that must not change anything."""
        return Verdict(self._kept.doubt) if self._kept.doubt else self._compare(epoch, deployment, milestones)

    def _compare(self, epoch: int, deployment: str, milestones: int) -> Verdict:
        kept = self._kept
        if deployment and deployment != kept.deployment:
            return Verdict.LOST
        if not deployment and not epoch:  # new books: nothing is lost where nothing was ever rented
            return Verdict.LOST if kept.milestones else Verdict.OK
        return Verdict.BEHIND if epoch < kept.epoch or milestones < kept.milestones else Verdict.OK

    def accept(self, epoch: int, milestones: int) -> None:
        """The user has looked (`audit`, `adopt`): these books are the books from now on."""
        self._keep(replace(self._kept, epoch=max(epoch, self._kept.epoch), milestones=milestones, doubt=""))

    def _keep(self, kept: _Kept) -> None:
        self._write(kept)
        self._kept = kept

    def _read(self) -> _Kept | None:
        try:
            text = self._file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None
        try:
            document = json.loads(text)
            kept = _Kept(
                str(document["deployment"]),
                int(document["epoch"]),
                int(document.get("milestones", 0)),
                Verdict(document["doubt"]).value if document.get("doubt") else "",
            )
        except (ValueError, KeyError, TypeError) as error:
            raise self._broken(f"is not the JSON that gpujob wrote ({error})") from error
        if len(kept.deployment) != ID_LENGTH or not set(kept.deployment) <= set(ID_LETTERS):
            raise self._broken(f"has a deployment id that is not {ID_LENGTH} letters or digits")
        return kept

    def _broken(self, what: str) -> BooksBroken:
        return BooksBroken(
            f"{self._file} {what}. It holds the id under which machines are rented. Move it away: the next command "
            "takes the id over from the database; then run `gpujob audit`"
        )

    def _write(self, kept: _Kept, exclusive: bool = False) -> None:
        """Whole or not at all, and on the disk when this returns. `exclusive` leaves a file that appeared meanwhile."""
        half = self._file.with_name(f"{self._file.name}.{os.getpid()}")
        handle = os.open(half, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with open(handle, "w", encoding="utf-8") as out:
            out.write(json.dumps(asdict(kept)) + "\n")
            out.flush()
            os.fsync(out.fileno())
        if exclusive and self._file.exists():
            half.unlink()
            return
        os.replace(half, self._file)
        folder = os.open(self._file.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

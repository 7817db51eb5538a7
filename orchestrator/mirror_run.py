"""The newest checkpoints of one run into the mirror, each for itself: one that cannot be copied stops no other.

Rules
- The newest first: it is the one that a machine which goes away would take with it.
- What is damaged, unsafe or unreadable stays on the machine and is said once; it is not tried again.
- What failed otherwise (it was being written, a disk was full) is tried again by the next call, and only that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator import checkpoints
from orchestrator.mirror import CheckpointError, Manifest, StillChanging
from orchestrator.model import AgentCheckpoint
from orchestrator.ssh_errors import DiskFull, SshError, Stopped, Unreachable, Unsafe

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.ssh import Connection
    from orchestrator.sync import Progress


@dataclass
class Brought:
    """What one pass did. `failed` and `refused`: the checkpoint and why, to be tried again or not."""

    manifests: list[Manifest] = field(default_factory=list)
    failed: list[tuple[AgentCheckpoint, str]] = field(default_factory=list)
    refused: list[tuple[AgentCheckpoint, str]] = field(default_factory=list)


def bring(
    connection: Connection,
    home: Home,
    *,
    job: str,
    task: str,
    n: int,
    root: str,
    wanted: Sequence[AgentCheckpoint],
    slots: int,
    parent: str | None,
    ordinal: int,
    tell: Callable[[AgentCheckpoint], Callable[[Progress], None]] | None = None,
) -> Brought:
    """Mirror the last `slots` of `wanted` (oldest first) that can be, from the absolute folder `root`. `ordinal`: the
    highest step so far, that of the resume point included, for names without a number. A broken connection or a full
    disk ends the pass. `tell`: what to call with the progress of one.
    """
    done = Brought()
    # A name without a number: its order of arrival
    left = [(found, found.step if found.step >= 0 else ordinal + at) for at, found in enumerate(wanted, 1)]
    while left and len(done.manifests) + len(done.failed) < slots:
        found, step = left.pop()
        try:
            manifest = checkpoints.mirror_one(
                connection, connection.target, home, job=job, task=task, n=n, name=found.name, step=step,
                remote_path=f"{root}/{found.name}", parent=parent, progress=tell(found) if tell is not None else None,
            )  # fmt: skip
        except (StillChanging, Stopped) as error:
            done.failed.append((found, str(error)))
        except (CheckpointError, Unsafe) as error:
            done.refused.append((found, f"{found.name[:120]} is no checkpoint to resume from: {error}"))
        except (SshError, OSError) as error:
            done.failed.append((found, str(error)))
            if isinstance(error, Unreachable | DiskFull | OSError):
                done.failed += [(other, str(error)) for other, _ in left]
                break
        else:
            done.manifests.append(manifest)
    return done

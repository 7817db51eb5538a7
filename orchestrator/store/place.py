"""Is a folder on a network file system? SQLite's locks and shared memory do not hold there: the books are refused.

Linux says it in /proc/mounts, macOS by `mount`. A system that says neither is believed to be local.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

#: Shared between hosts, or with the host of a virtual machine: no shared memory, and locks of another kind.
NETWORK_TYPES = frozenset(
    "nfs nfs3 nfs4 cifs smb2 smb3 smbfs sshfs afpfs webdav davfs ceph glusterfs lustre beegfs gpfs afs orangefs "
    "ocfs2 gfs2 vboxsf prl_fs vmhgfs drvfs".split()
)


def network_filesystem(folder: Path) -> str | None:
    """The type of the network file system that holds `folder`, or None."""
    mounts = Path("/proc/mounts")
    if mounts.exists():
        return network_type(folder, linux_mounts(mounts.read_text(encoding="utf-8", errors="replace")))
    if Path("/sbin/mount").exists():
        done = subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=10, check=False)
        return network_type(folder, macos_mounts(done.stdout))
    return None


def linux_mounts(text: str) -> list[tuple[str, str, str]]:
    """(mount point, type, options) a line of /proc/mounts; blanks in paths are octal there."""
    rows = [line.split(" ") for line in text.splitlines()]
    return [(_octal(row[1]), row[2], row[3]) for row in rows if len(row) >= 4]


def macos_mounts(text: str) -> list[tuple[str, str, str]]:
    """The same from `DEVICE on /path (type, options)`."""
    found = re.finditer(r"^.* on (/.*) \(([a-z0-9_]+)(.*)\)$", text, re.MULTILINE)
    return [(match[1], match[2], match[3]) for match in found]


def network_type(folder: Path, mounts: list[tuple[str, str, str]]) -> str | None:
    """The network type of the innermost mount above `folder`; of two on one point the later hides the earlier."""
    path = os.path.realpath(folder)
    above = [m for m in mounts if path == m[0] or path.startswith(m[0].rstrip("/") + "/")]
    if not above:
        return None
    _, kind, options = max(enumerate(above), key=lambda pair: (len(pair[1][0]), pair[0]))[1]
    if kind in NETWORK_TYPES:
        return kind
    # FUSE says which program serves it: fuse.sshfs, fuse.rclone ...; only those known to be local pass
    if kind.startswith("fuse.") and kind.removeprefix("fuse.") not in {
        "fuse-overlayfs",
        "gocryptfs",
        "ext4",
        "ntfs-3g",
    }:
        return kind
    if kind == "9p" and "aname=drvfs" in options:  # a Windows drive inside WSL2
        return "drvfs"
    return None


def _octal(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)

"""What runs when a rented machine starts: the boot hook first, whatever else the image does.

    container   a script handed over as base64 in a variable or as the start command, run at every start
    cloud-init  user data that installs the hook as a service of the login user, run at every boot

Rules
- The hook is started detached before anything that can fail or take long: it is the machine's dead-man.
- A container's `poweroff` is replaced by what really stops the bill there; the hook and the agent only know that name.
- Texts are packed (gzip, base64), because start commands are short: 4,048 characters at one company.
"""

from __future__ import annotations

import base64
import gzip

#: Undoes `packed`, as part of a shell line.
UNPACK = "base64 -d | gzip -d"

# The login user's sshd where the image does not bring one that is started already.
_SSHD = """\
if [ -x /start.sh ]; then exec /start.sh; fi
if ! command -v sshd >/dev/null || ! command -v rsync >/dev/null || ! command -v tmux >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -q && apt-get install -y -q --no-install-recommends openssh-server rsync tmux
fi
mkdir -p /run/sshd && ssh-keygen -A
exec "$(command -v sshd)" -D -e
"""


def packed(text: str) -> str:
    """`text` for a shell that pipes it through `UNPACK`; the same text gives the same letters."""
    return base64.b64encode(gzip.compress(text.encode(), 9, mtime=0)).decode()


def unpacked(letters: str) -> str:
    """The reverse of `packed`."""
    return gzip.decompress(base64.b64decode(letters)).decode()


def container_start(hook: str, public_key: str, poweroff: str, *, serve_ssh: bool) -> str:
    """A sh script for each start of a container as root: own `poweroff`, key, hook, then sshd where `serve_ssh`.

    `poweroff` is sh text that ends the bill from inside; variables in it are filled in when the container starts,
    since a login over SSH does not see the container's environment.
    """
    parts = [
        "umask 077",
        'HOME=${HOME:-/root}; export HOME; mkdir -p "$HOME/.ssh" /usr/local/sbin',
        f"cat >/usr/local/sbin/poweroff <<END_OF_POWEROFF\n#!/bin/sh\n{poweroff.rstrip()}\nEND_OF_POWEROFF",
        "chmod 700 /usr/local/sbin/poweroff",
        f"k='{public_key.strip()}'",
        'grep -qxF "$k" "$HOME/.ssh/authorized_keys" 2>/dev/null || echo "$k" >>"$HOME/.ssh/authorized_keys"',
        f'echo {packed(hook)} | {UNPACK} >"$HOME/.gpujob-boot.sh"',
        '(setsid sh "$HOME/.gpujob-boot.sh" </dev/null >/dev/null 2>&1 &)',
    ]
    return "\n".join(parts) + "\n" + (_SSHD if serve_ssh else "")


def cloud_config(hook: str, user: str) -> str:
    """cloud-init user data that runs the hook as `user` at every boot, and again should it ever end."""
    unit = f"""\
[Unit]
Description=gpujob boot hook

[Service]
User={user}
ExecStart=/bin/sh /usr/local/lib/gpujob/boot.sh
KillMode=process
Restart=always
RestartSec=5

[Install]
WantedBy=multi-user.target
"""
    return f"""\
#cloud-config
write_files:
- path: /usr/local/lib/gpujob/boot.sh
  permissions: "0600"
  encoding: gz+b64
  content: {packed(hook)}
- path: /etc/systemd/system/gpujob-boot.service
  permissions: "0644"
  encoding: gz+b64
  content: {packed(unit)}
runcmd:
- [chown, "{user}", /usr/local/lib/gpujob/boot.sh]
- [systemctl, daemon-reload]
- [systemctl, enable, --now, gpujob-boot.service]
"""

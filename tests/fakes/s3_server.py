"""A real S3 server on loopback for tests: SeaweedFS, with an owner's key, a role and session policies that it enforces.

    with S3Server(folder) as server:
        settings = server.settings("lab", prefix="ckpt", role=True)

Rules: one process, its own ports and folder, ended with the context. A platform without the binary skips, and says so.
"""

from __future__ import annotations

import base64
import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from orchestrator.objects.s3 import S3Store
from orchestrator.objects.settings import StoreSettings

BUCKET = "lab"
OWNER = {"aws_access_key_id": "owner-key", "aws_secret_access_key": "owner-secret"}
OTHER = {"aws_access_key_id": "other-key", "aws_secret_access_key": "other-secret"}  # may use scoped/ only
ROLE = "arn:aws:iam::role/Machine"
START_S = 60.0

_IDENTITIES = {
    "identities": [
        {
            "name": "owner",
            "credentials": [{"accessKey": "owner-key", "secretKey": "owner-secret"}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        },
        {
            "name": "scoped",
            "credentials": [{"accessKey": "other-key", "secretKey": "other-secret"}],
            "actions": [f"Read:{BUCKET}/scoped/*", f"Write:{BUCKET}/scoped/*"],
        },
    ]
}
_ROLES = {
    "sts": {
        "tokenDuration": "1h",
        "maxSessionLength": "12h",
        "issuer": "test",
        "signingKey": base64.b64encode(b"signing key of a test server, 32").decode(),
    },
    "policy": {"defaultEffect": "Deny", "storeType": "memory"},
    "policies": [
        {
            "name": "All",
            "document": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Action": ["s3:*"], "Resource": ["*"]}],
            },
        }
    ],
    "roles": [
        {
            "roleName": "Machine",
            "roleArn": ROLE,
            "attachedPolicies": ["All"],
            "trustPolicy": {
                "Version": "2012-10-17",
                "Statement": [{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": ["sts:AssumeRole"]}],
            },
        }
    ],
}


def weed() -> str | None:
    """The server's binary: beside this Python, or in PATH."""
    beside = Path(sys.executable).parent / "weed"
    return str(beside) if beside.exists() else shutil.which("weed")


def _ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports


class S3Server:
    """One server with one bucket."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def __enter__(self) -> S3Server:
        binary = weed()
        assert binary is not None, "no weed"
        (self.folder / "data").mkdir(parents=True)
        (self.folder / "s3.json").write_text(json.dumps(_IDENTITIES))
        (self.folder / "iam.json").write_text(json.dumps(_ROLES))
        self._start(binary)
        S3Store(self.settings("lab"), OWNER)._s3.create_bucket(Bucket=BUCKET)
        return self

    def _start(self, binary: str) -> None:
        for _ in range(3):  # a port may be taken between the look and the start
            master, master_g, volume, volume_g, filer, filer_g, s3, s3_g = _ports(8)
            self.port = s3
            log = (self.folder / "weed.log").open("ab")
            with log:
                self.process = subprocess.Popen(
                    [
                        binary, "-logtostderr=true", "server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1",
                        f"-dir={self.folder / 'data'}", "-master.volumeSizeLimitMB=64",
                        f"-master.port={master}", f"-master.port.grpc={master_g}", f"-volume.port={volume}",
                        f"-volume.port.grpc={volume_g}", "-volume.max=0", "-filer", f"-filer.port={filer}",
                        f"-filer.port.grpc={filer_g}", "-s3", f"-s3.port={s3}", f"-s3.port.grpc={s3_g}",
                        "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.localSocket={self.folder / 's3.sock'}",
                        f"-s3.config={self.folder / 's3.json'}", f"-s3.iam.config={self.folder / 'iam.json'}",
                    ],
                    stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder,
                )  # fmt: skip
            if self._answers():
                return
            self._stop()
        raise AssertionError(f"the S3 server did not start: {(self.folder / 'weed.log').read_text()[-3000:]}")

    def _answers(self) -> bool:
        assert self.process is not None
        end = time.monotonic() + START_S
        while time.monotonic() < end and self.process.poll() is None:
            try:
                S3Store(self.settings("lab"), OWNER)._s3.list_buckets()
                probe = urllib.request.Request(f"http://127.0.0.1:{self.port}/", method="GET")
                with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(probe, timeout=5):
                    pass
                return True
            except Exception:  # whatever says "not yet"
                time.sleep(0.2)
        return False

    def _stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def kill(self) -> None:
        """As a crash: what was not acknowledged may be lost."""
        self._stop()

    def start_again(self) -> None:
        """On the same data, at other ports."""
        binary = weed()
        assert binary is not None
        self._start(binary)

    def __exit__(self, *_: object) -> None:
        self._stop()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def settings(self, name: str = "lab", prefix: str = "", role: bool = False, **more: Any) -> StoreSettings:
        """An entry of `stores` for this server."""
        given = {"endpoint": self.endpoint, **more}
        return StoreSettings(
            name, f"s3://{BUCKET}/{prefix}".rstrip("/"), region="us-east-1", role_arn=ROLE if role else "", **given
        )

    def store(self, **more: Any) -> S3Store:
        """With the owner's key."""
        return S3Store(self.settings(**more), OWNER)

"""Remote data from the spec to the machine: the web, the Hub, an rclone remote; each against a real server or tool."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_web import COMMIT, FakeWeb
from rented_machine import JOB, Rented, rented

from jobspecs.load import load_spec
from orchestrator import landing
from orchestrator.datasets import DataError, Manifest, load, summaries
from orchestrator.execute import WorkFailed
from orchestrator.home import Home
from orchestrator.model import Reason
from orchestrator.sources import client, hub
from orchestrator.sources.listing import manifests_of
from orchestrator.ssh_files import write_private
from orchestrator.transfers import Teller


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rented]:
    with rented(tmp_path_factory.mktemp("machine")) as made:
        yield made


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeWeb]:
    monkeypatch.setattr(client, "_sleep", lambda _: None)
    for name in (hub.TOKEN, "http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with FakeWeb() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.url)
        yield made


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("GPUJOB_NO_KEYRING", "1")
    return Home(state=tmp_path / "state", config=tmp_path / "config").make()


def look(home: Home, data: str, more: str = "") -> Manifest:
    """The manifest of the one data source of a spec."""
    spec = load_spec(f"name: digits\ngpu: none\nrun: x\ndata: {data}\n{more}", "job.yaml")
    (made,) = manifests_of(home, spec, home.state).values()
    return made


def test_a_file_of_the_web_is_what_its_server_says(home: Home, web: FakeWeb) -> None:
    data = os.urandom(5000)
    web.files = {"/sets/a b.tar": data}
    made = look(home, f"'{web.url}/sets/a%20b.tar?download=1'")
    (file,) = load(home, made)
    assert (made.kind, made.single, made.count, made.bytes) == ("https", True, 1, 5000)
    assert file.more == {"url": f"{web.url}/sets/a%20b.tar?download=1", "etag": hashlib.md5(data).hexdigest()}
    assert web.encodings == {"identity"}  # a compressed answer is another file
    digest = hashlib.sha256(data).hexdigest()
    assert [each.sha256 for each in load(home, look(home, f"'{web.url}/sets/a%20b.tar#sha256={digest}'"))] == [digest]
    web.ranges = False
    assert [(each.more or {})["ranges"] for each in load(home, look(home, f"'{web.url}/sets/a%20b.tar'"))] == [False]


@pytest.mark.parametrize(
    ("status", "said"), [(404, "answers 404"), (403, "access denied"), (503, "no answer in 6 tries: 503")]
)
def test_what_a_server_refuses_is_told_at_apply(home: Home, web: FakeWeb, status: int, said: str) -> None:
    web.redirects = {}
    web.answer = lambda to: web.plain(to, status, b"")  # type: ignore[method-assign]
    with pytest.raises(DataError, match=said):
        look(home, f"'{web.url}/x.tar'")


def test_a_repository_of_the_hub_is_pinned_to_a_commit_with_all_hashes(home: Home, web: FakeWeb) -> None:
    big, small = os.urandom(2000), b"small"
    web.files = {f"/d/{n}.bin": big for n in range(5)} | {"/README.md": small, "/e/x": b"1"}
    web.page = 2
    made = look(home, "hf://datasets/org/set@v1")
    assert (made.kind, made.count, made.bytes) == ("hf", 7, 5 * 2000 + 6)
    assert made.origin == {"commit": COMMIT, "base": f"{web.url}/datasets/org/set/resolve/{COMMIT}/"}
    files = {file.path: file for file in load(home, made)}
    assert files["d/0.bin"].sha256 == hashlib.sha256(big).hexdigest()
    assert files["README.md"].more == {"sha1_git": hashlib.sha1(b"blob 5\0small").hexdigest()}
    below = look(home, "hf://org/model/d")
    assert [file.path for file in load(home, below)] == [f"{n}.bin" for n in range(5)]
    assert (below.origin or {})["base"] == f"{web.url}/org/model/resolve/{COMMIT}/d/"
    one = look(home, "hf://datasets/org/set/d/3.bin")
    assert (one.single, [file.path for file in load(home, one)]) == (True, ["3.bin"])
    tenth = look(home, "{from: hf://datasets/org/set/d, sample: 0.4}")
    assert tenth.count == 2


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("hf://datasets/squad", hub.Place("datasets", "squad", "main", "")),
        ("hf://gpt2@v1/a/b", hub.Place("models", "gpt2", "v1", "a/b")),
        ("hf://datasets/o/n@refs/pr/1/x", hub.Place("datasets", "o/n", "refs/pr/1", "x")),
        ("hf://o/n/", hub.Place("models", "o/n", "main", "")),
    ],
)
def test_names_of_the_hub(source: str, wanted: hub.Place) -> None:
    assert hub.parse(source) == wanted


def test_what_the_hub_refuses_is_told_apart(home: Home, web: FakeWeb, monkeypatch: pytest.MonkeyPatch) -> None:
    web.files = {"/a": b"x"}
    with pytest.raises(DataError, match="no such repository or revision"):
        look(home, "hf://datasets/org/set@nowhere")
    with pytest.raises(DataError, match="nothing at no/where"):
        look(home, "hf://datasets/org/set/no/where")
    web.closed, web.token = True, "hunter22"
    with pytest.raises(DataError) as caught:
        look(home, "hf://datasets/org/set")
    assert "HF_TOKEN" in caught.value.next_step
    monkeypatch.setenv("HF_TOKEN", "hunter22")
    with pytest.raises(DataError, match="private or gated") as caught:
        look(home, "hf://datasets/org/set")
    assert caught.value.next_step.startswith("write `secrets: [HF_TOKEN]`")
    assert look(home, "hf://datasets/org/set", "secrets: [HF_TOKEN]\n").count == 1


@pytest.mark.parametrize(
    "name", ["../x", "a/../../x", "/etc/x", "a//x", "./x", "a\0b", "a\nb", ".gpujob-partial/x", "a/.gpujob-partial"]
)
def test_a_listing_that_leads_out_of_the_data_is_refused(home: Home, web: FakeWeb, name: str) -> None:
    web.files = {"/a": b"x"}
    web.rows = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40}]
    with pytest.raises(DataError, match="is no path of a file"):
        look(home, "hf://datasets/org/set")


@pytest.mark.parametrize("rows", [{"error": "no"}, ["a"], [None]])
def test_a_listing_that_is_none_is_told(home: Home, web: FakeWeb, rows: Any) -> None:
    web.files, web.rows = {"/a": b"x"}, rows
    with pytest.raises(DataError, match="list of files is none"):
        look(home, "hf://datasets/org/set")


def test_a_listing_that_goes_on_elsewhere_does_not_take_the_token_there(
    home: Home, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter22")
    with FakeWeb() as elsewhere:
        web.files = elsewhere.files = {"/a": b"x", "/b": b"y"}
        web.page, web.next_page = 1, elsewhere.url
        with pytest.raises(DataError, match=r"goes on at another host, 127\.0\.0\.1"):
            look(home, "hf://datasets/org/set")
        assert elsewhere.asked == []


@pytest.mark.parametrize(
    "source", ["hf://../..", "hf://datasets/org/..", "hf://o/n/../x", "hf://o/n@../x", "hf://o/n@v1/./x"]
)
def test_a_repository_that_is_a_way_up_is_none(source: str) -> None:
    with pytest.raises(DataError, match="is no repository"):
        hub.parse(source)


@pytest.mark.parametrize("there", ["file:///etc/passwd", "ftp://127.0.0.1/x", "/a"])
def test_a_redirect_that_leads_nowhere_is_told_at_once(home: Home, web: FakeWeb, there: str) -> None:
    web.redirects = {"/a": there}
    with pytest.raises(DataError, match="this is no address of a file"):
        look(home, f"{web.url}/a")


class World:
    """One data source on the way to a machine."""

    def __init__(self, machine: Rented, source: str, path: str, more: str = "") -> None:
        self.machine = machine
        text = f"name: digits\ngpu: none\nrun: x\ndata: {{from: '{source}', path: {path}}}\n{more}"
        self.spec = load_spec(text, "job.yaml")
        made = manifests_of(machine.home, self.spec, machine.home.state)
        self.job: Any = SimpleNamespace(id=JOB, base_dir="/", data_manifests=summaries(made))
        self.dest = f"{machine.folders['data']}/{path}"
        self.told: list[tuple[str, int]] = []

    def land(self) -> None:
        ticks = iter(range(10**6))
        told = lambda seen: self.told.append((seen.what, seen.bytes))  # noqa: E731
        teller = Teller(told, "r", "t0.1", ticks.__next__)
        machine = self.machine
        landing.land(machine.conn, machine.home, self.job, self.spec, machine.folders, teller, 0, machine.ask)

    def there(self) -> list[str]:
        return self.machine.sh(f"cd {self.dest} && find . -type f | sort").splitlines()


def test_the_machine_brings_a_data_set_of_the_hub_and_mends_what_is_wrong(machine: Rented, web: FakeWeb) -> None:
    web.files = {f"/d/{n}.bin": os.urandom(3000) for n in range(4)} | {"/README.md": b"small"}
    web.faults = [503, ("retry", 429, 0.1)]
    world = World(machine, "hf://datasets/org/set", "set")
    world.land()
    assert world.there() == ["./README.md", *(f"./d/{n}.bin" for n in range(4))]
    machine.sh(f"cd {world.dest} && truncate -s 10 d/1.bin && : > d/2.bin && touch stale && printf smaLl > README.md")
    world.land()
    assert machine.sh(f"cd {world.dest} && sha256sum < d/1.bin").split()[0] == hashlib.sha256(
        web.files["/d/1.bin"]).hexdigest()  # fmt: skip
    assert world.there() == ["./README.md", *(f"./d/{n}.bin" for n in range(4))]
    assert machine.sh(f"cat {world.dest}/README.md") == "small"
    assert {each[2] for each in web.asked} == {""}


def test_the_token_reaches_the_machine_only_where_the_spec_says_so(
    machine: Rented, web: FakeWeb, monkeypatch: pytest.MonkeyPatch
) -> None:
    web.files, web.closed, web.token = {"/a": b"x" * 2000}, True, "hunter22"
    monkeypatch.setenv("HF_TOKEN", "hunter22")
    world = World(machine, "hf://org/model", "closed", "secrets: [HF_TOKEN]\n")
    folder = machine.home.secrets(JOB)
    folder.mkdir(parents=True, exist_ok=True)
    write_private(folder / "HF_TOKEN", b"hunter22")
    world.land()
    assert world.there() == ["./a"]
    assert web.asked[-1][2] == "Bearer hunter22"
    assert "hunter22" not in machine.sh("cat ~/.gpujob/fetch/*/state.json; ls -l ~/.gpujob/fetch/*")
    shutil.rmtree(folder)


def test_a_source_that_changed_since_apply_ends_the_job(machine: Rented, web: FakeWeb) -> None:
    web.files = {"/a.bin": b"old" * 100}
    world = World(machine, f"{web.url}/a.bin", "changed.bin")
    web.files = {"/a.bin": b"new" * 100}
    with pytest.raises(WorkFailed, match="it has changed since apply") as caught:
        world.land()
    assert caught.value.fatal is Reason.DATA
    web.files = {}
    with pytest.raises(WorkFailed, match=r"gone: .* 404") as caught:
        world.land()
    assert caught.value.fatal is Reason.DATA


def test_one_file_of_the_web_lands_under_its_path(machine: Rented, web: FakeWeb) -> None:
    web.files = {"/x/a.bin": os.urandom(100_000)}
    world = World(machine, f"{web.url}/x/a.bin", "own.bin")
    world.land()
    digest = hashlib.sha256(web.files["/x/a.bin"]).hexdigest()
    assert machine.sh(f"sha256sum {world.dest}").split()[0] == digest


@pytest.mark.skipif(shutil.which("rclone") is None, reason="rclone is not installed")
def test_any_store_of_rclone_goes_through_this_computer(
    machine: Rented, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "set" / "sub").mkdir(parents=True)
    for name in ("a b.bin", "sub/c.bin"):
        (tmp_path / "set" / name).write_bytes(os.urandom(2000))
    monkeypatch.setenv("RCLONE_CONFIG", str(tmp_path / "rclone.conf"))
    (tmp_path / "rclone.conf").write_text(f"[attic]\ntype = alias\nremote = {tmp_path}\n")
    world = World(machine, "attic:set", "attic")
    assert world.job.data_manifests["attic"]["kind"] == "rclone"
    world.land()
    sums = subprocess.run(["sha256sum", "a b.bin", "sub/c.bin"], cwd=tmp_path / "set", capture_output=True, text=True)
    assert machine.sh(f"cd {world.dest} && sha256sum 'a b.bin' sub/c.bin") == sums.stdout
    with pytest.raises(DataError, match="rclone: "):
        World(machine, "attic:nowhere", "nowhere")


def test_objects_of_a_store_are_fetched_by_addresses_that_open_them_alone(
    machine: Rented, s3_server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = s3_server.store()
    data = {"sets/x/a b.bin": os.urandom(3000), "sets/x/sub/c.bin": os.urandom(70_000), "sets/other": b"o"}
    for key, value in data.items():
        store.put(key, value)
    machine.home.config_file.parent.mkdir(parents=True, exist_ok=True)
    machine.home.config_file.write_text(
        f"stores:\n  lab: {{url: 's3://lab/sets', endpoint: '{s3_server.endpoint}', region: us-east-1}}\n"
    )
    monkeypatch.setenv("LAB_ACCESS_KEY_ID", "owner-key")
    monkeypatch.setenv("LAB_SECRET_ACCESS_KEY", "owner-secret")
    monkeypatch.setenv("GPUJOB_NO_KEYRING", "1")
    world = World(machine, "lab:x", "stored")
    manifest = world.job.data_manifests["stored"]
    assert (manifest["kind"], manifest["count"], manifest["region"]) == ("s3", 2, "")
    world.land()
    assert world.there() == ["./a b.bin", "./sub/c.bin"]
    digest = hashlib.sha256(data["sets/x/sub/c.bin"]).hexdigest()
    assert machine.sh(f"sha256sum {world.dest}/sub/c.bin").split()[0] == digest
    # nothing that opens more than these two objects, or opens them for ever, is left there
    ours = "--exclude=agent.py --exclude-dir=__pycache__"
    left = machine.sh(f"grep -rl {ours} -e owner-secret -e X-Amz-Signature ~/.gpujob ~/gpujob || true")
    assert left == ""
    one = World(machine, "s3://lab/sets/x/a b.bin", "one.bin")
    assert one.job.data_manifests["one.bin"]["single"] is True
    one.land()
    assert machine.sh(f"wc -c < {one.dest}").strip() == "3000"
    with pytest.raises(DataError, match="there is nothing below it"):
        World(machine, "lab:nowhere", "nowhere")
    store.put("sets/x/sub/c.bin", os.urandom(70_000))
    machine.sh(f"rm -r {world.dest}")
    with pytest.raises(WorkFailed, match="it has changed since apply"):
        world.land()
    machine.home.config_file.unlink()

"""Lambda Cloud's API 1.10.0 as its official document describes it: types with capacity, launches, keys, tags."""

from __future__ import annotations

import base64
import re
import socket
from dataclasses import dataclass
from typing import Any

import yaml
from fake_machines import Banner
from fake_rest import FakeApi, Reply, Request, Route
from forwards import Forward

from providers.startup import unpacked

# name, description of one card, canonical class, cards, cents an hour, regions
TYPES: tuple[tuple[str, str, str, int, int, tuple[str, ...]], ...] = (
    ("gpu_1x_a10", "A10 (24 GB PCIe)", "A10", 1, 75, ("us-west-1", "us-east-1")),
    ("gpu_1x_h100_sxm5", "H100 (80 GB SXM5)", "H100-SXM", 1, 329, ("us-west-1",)),
    ("gpu_8x_h100_sxm5", "H100 (80 GB SXM5)", "H100-SXM", 8, 2392, ("us-south-2",)),
    ("gpu_1x_future", "Z9 (640 GB)", "", 1, 999, ("mars-north-1",)),
    ("cpu_4x_general", "N/A", "", 0, 9, ("us-west-1",)),
    ("gpu_2x_a10", "A10 (24 GB PCIe)", "A10", 2, 150, ()),
)
SHOWN_DEAD_S = 60.0  # how long a terminated machine is still shown


@dataclass
class Machine:
    id: str
    asked: dict[str, Any]
    born: float
    handle: str
    ended: float | None = None
    status: str = ""
    address: str = ""
    forward: Forward | None = None


class FakeLambda(FakeApi):
    """One account. `boot_s`: until a machine is active; `ending_s`: how long it is terminating."""

    name, spec, origin = "lambda", "lambda.json", "official"

    def __init__(self, machines: Any = None) -> None:
        super().__init__(machines)
        self.instances: dict[str, Machine] = {}
        self.keys: dict[str, dict[str, str]] = {}
        self.boot_s = self.ending_s = 0.0
        self.empty: set[str] = set()
        self.port = 0  # of every machine's sshd, each at an address of its own

    def __enter__(self) -> Any:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = self.machines.port if isinstance(self.machines, Banner) else probe.getsockname()[1]
        return super().__enter__()

    def __exit__(self, kind: object, *rest: object) -> None:
        for machine in self.instances.values():
            if machine.forward is not None:
                machine.forward.close()
        super().__exit__(kind, *rest)

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), "ssh_port": self.port}

    def routes(self) -> tuple[Route, ...]:
        api = "/api/v1"
        return (
            ("GET", f"{api}/instance-types", self._types),
            ("POST", f"{api}/instance-operations/launch", self._launch),
            ("POST", f"{api}/instance-operations/terminate", self._terminate),
            ("GET", f"{api}/instances", self._list),
            ("GET", f"{api}/instances/([^/]+)", self._get),
            ("GET", f"{api}/ssh-keys", lambda request: Reply(200, {"data": list(self.keys.values())})),
            ("POST", f"{api}/ssh-keys", self._add_key),
            ("DELETE", f"{api}/ssh-keys/([^/]+)", self._remove_key),
        )

    def unauthorized(self, request: Request) -> Reply:
        advice = "Check your API key or create a new one, then try again."
        return error(401, "global/invalid-api-key", "API key was invalid, expired, or deleted.", advice)

    # --- what a test does to it ---------------------------------------------------------------------------------------

    def fail(self, machine: str, status: str) -> None:
        """The machine stops answering, and is said to be `status`."""
        with self.lock:
            self.machines.kill(self.instances[machine].handle)
            self.instances[machine].status = status

    # --- routes -------------------------------------------------------------------------------------------------------

    def _types(self, request: Request) -> Reply:
        found = {
            name: {
                "instance_type": self._type(name),
                "regions_with_capacity_available": [
                    {"name": place, "description": place} for place in places if name not in self.empty
                ],
            }
            for name, *_, places in TYPES
        }
        return Reply(200, {"data": found})

    def _type(self, name: str) -> dict[str, Any]:
        _, card, _, count, cents, _ = next(each for each in TYPES if each[0] == name)
        specs = {"vcpus": 30 * max(count, 1), "memory_gib": 200 * max(count, 1), "storage_gib": 1400, "gpus": count}
        described = f"{count}x {card}"
        return {
            "name": name, "description": described, "gpu_description": card, "price_cents_per_hour": cents,
            "specs": specs,
        }  # fmt: skip

    def _launch(self, request: Request) -> Reply:
        asked = request.body
        kind = next((each for each in TYPES if each[0] == asked["instance_type_name"]), None)
        if kind is None:
            return error(404, "global/object-does-not-exist", None)
        if len(asked["ssh_key_names"]) != 1 or any(
            not re.fullmatch("[a-z][a-z0-9-:]+", t["key"]) for t in asked["tags"]
        ):
            return error(400, "global/invalid-parameters", "Invalid request data.")
        key = next((key for key in self.keys.values() if key["name"] == asked["ssh_key_names"][0]), None)
        if key is None:
            return error(400, "global/object-does-not-exist", None)
        if kind[0] in self.empty or asked["region_name"] not in kind[5]:
            return error(
                400,
                "instance-operations/launch/insufficient-capacity",
                "Not enough capacity to fulfill launch request.",
            )
        machine = f"{self.next_number():032x}"
        hook = hook_of(asked["user_data"])
        handle = self.machines.start(machine, hook, key["public_key"], kind[2], kind[3])
        made = self.instances[machine] = Machine(machine, asked, self.now(), handle, address="127.0.0.1")
        if not isinstance(self.machines, Banner):
            made.address = f"127.88.{self.port % 250}.{len(self.instances)}"
            made.forward = Forward((made.address, self.port), lambda: self.machines.place(handle))
        return Reply(200, {"data": {"instance_ids": [machine]}})

    def _terminate(self, request: Request) -> Reply:
        found = [self.instances.get(each) for each in request.body["instance_ids"]]
        machines = [machine for machine in found if machine is not None and self._shown(machine)]
        if len(machines) != len(found):
            return error(404, "global/object-does-not-exist", "Specified instance does not exist.")
        for machine in machines:
            self.machines.kill(machine.handle)
            machine.ended = machine.ended if machine.ended is not None else self.now()
        return Reply(200, {"data": {"terminated_instances": [self._shape(machine) for machine in machines]}})

    def _shown(self, machine: Machine) -> bool:
        return machine.ended is None or self.now() < machine.ended + self.ending_s + SHOWN_DEAD_S

    def _list(self, request: Request) -> Reply:
        return Reply(200, {"data": [self._shape(each) for each in self.instances.values() if self._shown(each)]})

    def _get(self, request: Request) -> Reply:
        machine = self.instances.get(request.parts[0])
        if machine is None or not self._shown(machine):
            return error(404, "global/object-does-not-exist", "Specified instance does not exist.")
        return Reply(200, {"data": self._shape(machine)})

    def _add_key(self, request: Request) -> Reply:
        asked = request.body
        if any(key["name"] == asked["name"] for key in self.keys.values()):
            return error(400, "global/invalid-parameters", "Invalid request data.")
        key = {"id": f"{self.next_number():032x}", "name": asked["name"], "public_key": asked["public_key"]}
        self.keys[key["id"]] = key
        return Reply(200, {"data": key})

    def _remove_key(self, request: Request) -> Reply:
        if self.keys.pop(request.parts[0], None) is None:
            return error(404, "global/not-found", "The requested resource was not found.")
        return Reply(200, {"data": {}})

    def _shape(self, machine: Machine) -> dict[str, Any]:
        asked, place = machine.asked, self.machines.place(machine.handle)
        status = "booting" if self.now() < machine.born + self.boot_s else "active"
        if machine.ended is not None:
            status = "terminating" if self.now() < machine.ended + self.ending_s else "terminated"
        status = machine.status or status if machine.ended is None else status
        allowed = {"available": True}
        where = {"ip": machine.address} if place and status == "active" else {}
        return {
            "id": machine.id, "name": asked["name"], **where,
            "status": status, "ssh_key_names": asked["ssh_key_names"], "file_system_names": [],
            "region": {"name": asked["region_name"], "description": ""},
            "instance_type": self._type(asked["instance_type_name"]), "is_reserved": False, "tags": asked["tags"],
            "actions": dict.fromkeys(("migrate", "rebuild", "restart", "cold_reboot", "terminate"), allowed),
        }  # fmt: skip


def hook_of(user_data: str) -> str:
    """The boot hook inside cloud-init user data, as cloud-init would write it."""
    assert user_data.startswith("#cloud-config\n")
    files = yaml.safe_load(user_data)["write_files"]
    hook = next(each for each in files if each["path"].endswith("boot.sh"))
    assert base64.b64decode(hook["content"])[:2] == b"\x1f\x8b"
    return unpacked(hook["content"])


def error(status: int, code: str, message: str | None, suggestion: str | None = None) -> Reply:
    """Lambda's error body."""
    said = {"code": code, "message": message or "It was not found.", "suggestion": suggestion or "Look again."}
    return Reply(status, {"error": said})

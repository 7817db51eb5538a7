"""Vast.ai's API by its official document: searches, asks taken at a price, pages of 25, outbid machines."""

from __future__ import annotations

import base64
import json
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fake_machines import boot_of
from fake_rest import FakeApi, Reply, Request, Route

# ask, card as spelled there, canonical class, MB of each, cards, $/h, least bid, country
ASKS: tuple[tuple[int, str, str, int, int, float, float, str], ...] = (
    (101, "RTX 4090", "RTX-4090", 24564, 1, 0.40, 0.12, "Oslo, NO"),
    (102, "RTX 4090", "RTX-4090", 24564, 2, 0.82, 0.25, "Texas, US"),
    (103, "RTX 4090", "RTX-4090-48GB", 49140, 1, 0.55, 0.20, "Taipei, TW"),
    (104, "A100 SXM4", "A100-80GB-SXM", 81920, 1, 1.10, 0.45, "Quebec, CA"),
    (105, "H100 SXM", "H100-SXM", 81559, 1, 2.10, 0.90, "Texas, US"),
    (106, "Imaginary RTX 9999", "", 24576, 1, 0.10, 0.05, "Atlantis, AT"),
)
PAGE = 25
COMPARE: Mapping[str, Callable[[Any, Any], bool]] = {
    "eq": operator.eq, "neq": operator.ne, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt,
    "lte": operator.le, "in": lambda a, b: a in b, "notin": lambda a, b: a not in b,
}  # fmt: skip


@dataclass
class Contract:
    id: int
    ask: int
    asked: dict[str, Any]
    born: float
    handle: str
    stopped: bool = False
    status: str | None = None


class FakeVast(FakeApi):
    """One account. `boot_s`: until a machine runs; `lag_s`: how long a listing still shows a destroyed one."""

    name, spec, origin = "vast", "vast.yaml", "official"
    # The document's mistakes: the company's own client sends another runtype; `ports` is a map in one place, a list in
    # another; a destroyed machine is null where an object is promised; a destroyed one is 404, and a used-up
    # quota 429, where none is listed.
    forgiven = (
        r"\$\.runtype",
        r"\$\.instances\.ports",
        r"\$\.instances: None",
        r"\$\.error",
        r"has no answer (404|429)",
    )

    def __init__(self, machines: Any = None) -> None:
        super().__init__(machines)
        self.contracts: dict[int, Contract] = {}
        self.boot_s = 0.0
        self.taken: set[int] = set()
        self.searches_left = 1000
        self.credit = 100.0

    def routes(self) -> tuple[Route, ...]:
        return (
            ("POST", "/api/v0/bundles", self._search),
            ("PUT", "/api/v0/asks/([0-9]+)", self._take),
            ("GET", "/api/v1/instances", self._list),
            ("GET", "/api/v0/instances/([0-9]+)", self._get),
            ("DELETE", "/api/v0/instances/([0-9]+)", self._destroy),
            ("GET", "/api/v0/users/current", lambda request: Reply(200, {"id": 7, "balance": self.credit})),
        )

    def unauthorized(self, request: Request) -> Reply:
        if request.path.startswith("/api/v0/bundles"):
            return Reply(404, {"error": None, "msg": "Invalid user key"})
        return Reply(401, {"success": False, "error": "auth_error", "msg": "Invalid user key"})

    # --- what a test does to it ---------------------------------------------------------------------------------------

    def outbid(self, contract: int) -> None:
        """Somebody bids more: stopped without a word, the disk stays and bills."""
        with self.lock:
            self.machines.kill(self.contracts[contract].handle)
            self.contracts[contract].stopped = True

    def add_strangers(self, count: int) -> None:
        """Machines of the same account that somebody made by hand."""
        for _ in range(count):
            self._make(101, {"image": "ubuntu", "label": None, "onstart": "", "disk": 10}, "")

    # --- routes -------------------------------------------------------------------------------------------------------

    def _search(self, request: Request) -> Reply:
        if self.searches_left <= 0:
            reset = {"X-RateLimit-Reset": str(int(self.now() + 3600))}
            return Reply(429, {"success": False, "error": "search_quota_exceeded", "msg": "daily search quota"}, reset)
        self.searches_left -= 1
        bid = request.body.get("type") == "bid"
        rows = [self._row(each, bid) for each in ASKS if each[0] not in self.taken]
        for field, rule in request.body.items():
            if isinstance(rule, dict):
                rows = [row for row in rows if all(COMPARE[op](row[field], value) for op, value in rule.items())]
        for field, way in reversed(request.body.get("order", [])):
            rows.sort(key=lambda row: row[field], reverse=way == "desc")
        return Reply(200, {"offers": rows[: request.body.get("limit", 64)]})

    def _row(self, ask: tuple[Any, ...], bid: bool) -> dict[str, Any]:
        number, card, _, ram, count, price, least, place = ask
        base = least if bid else price
        return {
            "id": number, "ask_contract_id": number, "machine_id": 9000 + number, "host_id": 7, "gpu_name": card,
            "gpu_ram": ram, "num_gpus": count, "cpu_cores_effective": 16.0, "cpu_ram": 128000, "gpu_frac": 0.5,
            "disk_space": 800.0, "dph_base": base, "dph_total": base + 0.01, "min_bid": least, "storage_cost": 0.15,
            "inet_down_cost": 0.002,
            "geolocation": place.split(", ")[1], "verification": "verified", "verified": True, "rentable": True,
            "rented": False, "direct_port_count": 10, "reliability2": 0.998, "is_bid": bid,
        }  # fmt: skip

    def _take(self, request: Request) -> Reply:
        number, asked = int(request.parts[0]), request.body
        ask = next((each for each in ASKS if each[0] == number and number not in self.taken), None)
        if ask is None:
            msg = f"error 404/3603: no_such_ask Instance type by id {number} is not available."
            return Reply(404, {"success": False, "error": "invalid_args", "msg": msg, "ask_id": number})
        if self.credit <= 0:
            msg = "Your account lacks credit; see the billing page."
            return Reply(400, {"success": False, "error": "invalid_args", "msg": msg, "ask_id": number})
        if "price" in asked and asked["price"] < ask[6]:
            return Reply(400, {"success": False, "error": "invalid_price", "msg": "bid is too low", "ask_id": number})
        assert asked["runtype"] in ("ssh_direc ssh_proxy", "ssh_direct", "ssh_proxy")
        assert len(asked["onstart"]) <= 4048
        return Reply(200, {"success": True, "new_contract": self._make(number, asked, ask[2])})

    def _make(self, number: int, asked: dict[str, Any], card: str) -> int:
        contract = 5000 + self.next_number()
        count = next(each[4] for each in ASKS if each[0] == number)
        handle = self.machines.start(str(contract), *boot_of(asked["onstart"]), card, count)
        self.contracts[contract] = Contract(contract, number, asked, self.now(), handle)
        return contract

    def _list(self, request: Request) -> Reply:
        limit = int(request.query.get("limit", PAGE))
        assert limit <= PAGE
        token = request.query.get("after_token")
        after = json.loads(base64.b64decode(token))["id"] if token else 0
        everything = sorted(self.contracts)
        rest = [each for each in everything if each > after]
        page = rest[:limit]
        more = base64.b64encode(json.dumps({"id": page[-1]}).encode()).decode() if len(rest) > limit else None
        rows = [self._shape(self.contracts[each]) for each in page]
        total = {"instances_found": len(page), "total_instances": len(everything)}
        return Reply(200, {"success": True, **total, "instances": rows, "next_token": more})

    def _get(self, request: Request) -> Reply:
        found = self.contracts.get(int(request.parts[0]))
        return Reply(200, {"instances": self._shape(found) if found else None})

    def _destroy(self, request: Request) -> Reply:
        contract = self.contracts.pop(int(request.parts[0]), None)
        if contract is None:
            return Reply(404, {"success": False, "error": "no_such_instance", "msg": "Instance not found"})
        self.machines.kill(contract.handle)
        return Reply(200, {"success": True, "msg": "Instance destroyed successfully"})

    def _shape(self, contract: Contract) -> dict[str, Any]:
        ask = next(each for each in ASKS if each[0] == contract.ask)
        place = self.machines.place(contract.handle)
        state = "stopped" if contract.stopped else "running"
        actual: str | None = "running" if self.now() >= contract.born + self.boot_s else None
        if place is None:
            actual = "exited"
        runs = actual == "running" and place is not None and not contract.stopped
        bid = "price" in contract.asked
        row = self._row(ask, bid)
        return {
            "id": contract.id, "label": contract.asked.get("label"), "actual_status": contract.status or actual,
            "intended_status": state, "cur_state": state, "next_state": state, "status_msg": None,
            "image_uuid": contract.asked["image"], "machine_id": row["machine_id"], "host_id": 7, "is_bid": bid,
            "gpu_name": ask[1], "gpu_ram": ask[3], "num_gpus": ask[4], "dph_total": contract.asked.get("price", ask[5]),
            "start_date": contract.born, "min_bid": ask[6], "geolocation": ask[7],
            **({"public_ipaddr": place[0]} if runs and place else {}),
            "ports": {"22/tcp": [{"HostIp": "0.0.0.0", "HostPort": str(place[1])}]} if runs and place else None,
            "ssh_host": "127.0.0.1", "ssh_port": 9,
        }  # fmt: skip

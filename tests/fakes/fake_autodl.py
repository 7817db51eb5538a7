"""AutoDL Pro as the derived document describes it, with what its users saw: HTTP 200 for everything, power off before
release, two names for a place, pages, a status and an address by another call than the name.

Not in any document, and supposed here: the bodies for a wrong key, an empty account, and an order at the wrong time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fake_machines import boot_of
from fake_rest import FakeApi, Reply, Request, Route

from providers.startup import unpacked

# What a create sends -> what stock calls it, canonical class, yuan times a thousand an hour
CARDS = {
    "4090D": ("RTX 4090D", "RTX-4090D", 1880),
    "v-48g": ("vGPU-48GB", "RTX-4090-48GB", 2980),
    "h800": ("H800", "H800", 8880),
}
PLACES = {"beijingDC2": ("bj-B2", "北京B区"), "westDC3": ("xb-B3", "西北B区")}
PASSWORD = "root-password-of-the-fake"


@dataclass
class Box:
    id: str
    asked: dict[str, Any]
    place: str
    born: float
    handle: str
    off: float | None = None  # when its power-off was ordered, or it powered itself off
    released: float | None = None
    status: str = ""  # set: what it is whatever the time


class FakeAutoDl(FakeApi):
    """One account. `boot_s`: until a machine runs; `off_s` and `release_s`: how long either takes."""

    name, spec, origin = "autodl", "autodl-derived.yaml", "derived"

    def __init__(self, machines: Any = None) -> None:
        super().__init__(machines)
        self.boxes: dict[str, Box] = {}
        self.images: list[dict[str, Any]] = []
        self.boot_s = self.off_s = self.release_s = 0.0
        self.empty: set[str] = set()
        self.assets, self.certified = 100_000, True
        self.page_max = 50

    def routes(self) -> tuple[Route, ...]:
        dev = "/api/v1/dev"
        return (
            ("POST", f"{dev}/wallet/balance", lambda request: success({"assets": self.assets, "voucher_balance": 0})),
            ("POST", f"{dev}/machine/region/gpu_stock", self._stock),
            ("POST", f"{dev}/instance/pro/create", self._create),
            ("POST", f"{dev}/instance/pro/list", self._list),
            ("GET", f"{dev}/instance/pro/status", self._status),
            ("GET", f"{dev}/instance/pro/snapshot", self._snapshot),
            ("POST", f"{dev}/instance/pro/power_off", self._power_off),
            ("POST", f"{dev}/instance/pro/release", self._release),
            ("POST", f"{dev}/instance/pro/image/private/list", lambda r: self._paged(r, self.images)),
        )

    def authorizes(self, header: str) -> bool:
        return header == self.key

    def unauthorized(self, request: Request) -> Reply:
        return refusal("AuthorizeFailed", "token无效")

    def settings(self) -> dict[str, Any]:
        return super().settings() | {"prices": {"4090D": 1.88, "H800": "8.88 CNY"}}

    # --- what a test does to it ---------------------------------------------------------------------------------------

    def stop(self, box: str) -> None:
        """The company, or the balance, stops it; it could be started again."""
        with self.lock:
            self.machines.kill(self.boxes[box].handle)
            self.boxes[box].off = self.now()

    @property
    def held(self) -> list[str]:
        """What is not released, whether it bills or not."""
        return [box.id for box in self.boxes.values() if box.released is None]

    # --- routes -------------------------------------------------------------------------------------------------------

    def _stock(self, request: Request) -> Reply:
        place, names = request.body["region_sign"], request.body.get("gpu_name_set", [])
        if place not in PLACES:
            return success([])
        rows = [
            {label: {"idle_gpu_num": 0 if spec in self.empty else 12, "total_gpu_num": 100, "chip_corp": "nvidia"}}
            for spec, (label, _, _) in CARDS.items()
            if label in names
        ]
        return success(rows)

    def _create(self, request: Request) -> Reply:
        asked = request.body
        if not self.certified:
            return refusal("TORealName", "未完成实名认证,认证后才可使用")
        if asked["gpu_spec_uuid"] not in CARDS or set(asked.get("data_center_list", [])) - set(PLACES):
            return refusal("RequestParameterIsWrong", "请求参数错误")
        if self.assets <= 0:
            return refusal("InternalError", "账户余额不足, 请充值")
        if asked["gpu_spec_uuid"] in self.empty:
            return refusal("InternalError", "当前算力规格暂无库存, 请修改配置或稍等再试")
        card = CARDS[asked["gpu_spec_uuid"]][1]
        hook, key = boot_of(start_of(asked.get("start_command", "")))
        box = f"pro-{self.next_number():012x}"
        handle = self.machines.start(box, hook, key, card, asked["req_gpu_amount"])
        place = asked.get("data_center_list", ["beijingDC2"])[0]
        self.boxes[box] = Box(box, asked, place, self.now(), handle)
        return success(box)

    def _list(self, request: Request) -> Reply:
        return self._paged(request, [self._row(box) for box in self.boxes.values() if self._known(box.id)])

    def _paged(self, request: Request, rows: list[dict[str, Any]]) -> Reply:
        page, size = request.body["page_index"], min(request.body["page_size"], self.page_max)
        some = rows[(page - 1) * size : page * size]
        pages = -(-len(rows) // size)
        return success(
            {"list": some, "page_index": page, "page_size": size, "max_page": pages, "result_total": len(rows)}
        )

    def _known(self, box: str) -> Box | None:
        found = self.boxes.get(box)
        if found is None or (found.released is not None and self.now() >= found.released + self.release_s):
            return None
        return found

    def _named(self, request: Request) -> Box | Reply:
        where = request.query if request.method == "GET" else request.body
        if not where.get("instance_uuid"):
            return refusal("RequestParameterIsWrong", "请求参数错误")
        return self._known(where["instance_uuid"]) or refusal("RecordNotFoundError", "未查询到相关实例")

    def _state(self, box: Box) -> str:
        if box.off is None and self.machines.place(box.handle) is None:
            box.off = self.now() - self.off_s  # it powered itself off
        if box.released is not None:
            return "releasing"
        if box.off is not None:
            return "shutting_down" if self.now() < box.off + self.off_s else "shutdown"
        return box.status or ("creating" if self.now() < box.born + self.boot_s else "running")

    def _status(self, request: Request) -> Reply:
        box = self._named(request)
        return success(self._state(box)) if isinstance(box, Box) else box

    def _snapshot(self, request: Request) -> Reply:
        box = self._named(request)
        if not isinstance(box, Box):
            return box
        place = self.machines.place(box.handle) if self._state(box) == "running" else None
        price = CARDS[box.asked["gpu_spec_uuid"]][2] * box.asked["req_gpu_amount"]
        host, port = (place[0], place[1]) if place else ("", 0)
        told = {
            "payg_price": price, "origin_pay_price": price, "snapshot_gpu_alias_name": "card", "chip_corp": "nvidia",
            "cpu_arch": "x86", "usage_info": {"valid": True}, "ssh_command": f"ssh -p {port} root@{host}",
            "proxy_host": host, "ssh_port": port, "root_password": PASSWORD, "jupyter_token": PASSWORD,
        }  # fmt: skip
        return success(told)

    def _power_off(self, request: Request) -> Reply:
        box = self._named(request)
        if not isinstance(box, Box):
            return box
        state = self._state(box)
        if state not in ("creating", "running"):
            return refusal("InternalError", "实例当前状态不允许关机")
        if state == "running":  # a machine that comes up was seen to take the order and to go on
            self.stop(box.id)
        return success(None)

    def _release(self, request: Request) -> Reply:
        box = self._named(request)
        if not isinstance(box, Box):
            return box
        if self._state(box) != "shutdown":
            return refusal("InternalError", "请先关机")
        box.released = self.now()
        return success(None)

    def _row(self, box: Box) -> dict[str, Any]:
        sign, label = PLACES[box.place]
        asked, born = box.asked, datetime.fromtimestamp(box.born, UTC).isoformat()
        return {
            "uuid": box.id, "name": asked.get("instance_name", ""), "status": self._state(box), "sub_status": "",
            "start_mode": "gpu", "charge_type": "payg", "region_sign": sign, "region_name": label,
            "req_gpu_amount": asked["req_gpu_amount"], "gpu_spec_uuid": asked["gpu_spec_uuid"],
            "machine_id": f"host-{box.place}", "created_at": born, "started_at": {"Time": born, "Valid": True},
        }  # fmt: skip


def start_of(command: str) -> str:
    """The script inside a start command, which must do without a quote."""
    found = re.fullmatch(r"echo (\S+) \| base64 -d \| gzip -d >\S+ && sh \S+", command)
    return unpacked(found[1]) if found else ""


def success(data: Any) -> Reply:
    return Reply(200, {"code": "Success", "msg": "", "data": data, "request_id": "r"})


def refusal(code: str, msg: str) -> Reply:
    """An error, which is HTTP 200 as everything is."""
    return Reply(200, {"code": code, "msg": msg, "request_id": "r"})

"""RunPod's REST v2 as its official document describes it: pods, the catalogue, problem+json errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fake_machines import boot_of
from fake_rest import FakeApi, Reply, Request, Route

from providers.runpod import BOOT_VARIABLE
from providers.startup import unpacked

# id, VRAM in GB, secure, community, price of each, most on one machine
CARDS = (
    ("NVIDIA GeForce RTX 4090", "RTX-4090", 24, 0.44, 0.31, 8),
    ("NVIDIA A100-SXM4-80GB", "A100-80GB-SXM", 80, 1.89, 1.19, 8),
    ("NVIDIA H100 80GB HBM3", "H100-SXM", 80, 2.99, 2.39, 8),
    ("NVIDIA X1 Unheard-Of", "", 512, 9.99, 9.99, 1),
)
CENTERS = ("US-KS-2", "EU-RO-1")
NONE_LEFT = "There are no longer any instances available with the requested specifications."


@dataclass
class Pod:
    id: str
    asked: dict[str, Any]
    born: float
    handle: str
    status: str = ""  # set: what it is whatever the time
    center: str | None = None
    uptime: float = field(default=0.0)


class FakeRunPod(FakeApi):
    """One account. `boot_s`: until a pod runs; `late_s`: until a listing shows it; `ghost_s`: how long a deleted pod
    is still got, as TERMINATED (the document has the status, and does not say whether it is ever seen).
    """

    name, spec, origin = "runpod", "runpod-v2.json", "official"

    def __init__(self, machines: Any = None) -> None:
        super().__init__(machines)
        self.pods: dict[str, Pod] = {}
        self.ended: dict[str, tuple[Pod, float]] = {}
        self.boot_s = self.late_s = self.ghost_s = 0.0
        self.empty: set[str] = set()  # ids of cards that are gone between the catalogue and the create
        self.balance = 100.0

    def routes(self) -> tuple[Route, ...]:
        return (
            ("GET", "/v2/catalog/gpus", self._gpus),
            ("GET", "/v2/catalog/cpus", self._cpus),
            ("GET", "/v2/pods", self._list),
            ("POST", "/v2/pods", self._create),
            ("GET", "/v2/pods/([^/]+)", self._get),
            ("DELETE", "/v2/pods/([^/]+)", self._delete),
        )

    def unauthorized(self, request: Request) -> Reply:
        return problem(401, "missing bearer token")

    # --- what a test does to it ---------------------------------------------------------------------------------------

    def exit(self, pod: str) -> None:
        """The container ends; the pod stays, and may be started again."""
        with self.lock:
            self.machines.kill(self.pods[pod].handle)
            self.pods[pod].status = "EXITED"

    def vanish(self, pod: str) -> None:
        """Its host is gone, and the pod with it."""
        with self.lock:
            self.machines.kill(self.pods.pop(pod).handle)

    # --- routes -------------------------------------------------------------------------------------------------------

    def _stock(self, card: str) -> str:
        return "NONE" if card in self.empty else "HIGH"

    def _gpus(self, request: Request) -> Reply:
        cloud = request.query.get("cloud", "SECURE")
        assert cloud in ("SECURE", "COMMUNITY")
        found = [
            {
                "id": card, "name": card.removeprefix("NVIDIA "), "pool": None, "manufacturer": "NVIDIA",
                "memory": memory, "secure": True, "community": True,
                "price": {"secure": secure, "community": community},
                "maxCount": {"secure": most, "community": most // 2}, "availability": "HIGH",
                "dataCenters": [{"id": center, "name": center, "availability": "HIGH"} for center in CENTERS],
            }
            for card, _, memory, secure, community, most in CARDS
        ]  # fmt: skip
        return Reply(200, {"gpus": found})

    def _cpus(self, request: Request) -> Reply:
        flavour = {
            "id": "cpu5c", "name": "Compute-Optimized", "group": "Gen 5", "vcpu": {"min": 2, "max": 32},
            "ramGbPerVcpu": 2.0, "price": {"securePerVcpu": 0.035, "serverlessPerVcpu": 0.03}, "availability": "HIGH",
            "dataCenters": [{"id": center, "name": center, "availability": "LOW"} for center in CENTERS],
        }  # fmt: skip
        return Reply(200, {"cpus": [flavour]})

    def _create(self, request: Request) -> Reply:
        asked = request.body
        wrong = self.document.errors("POST", "/v2/pods", None, asked) if self.document else []
        if wrong:
            return problem(422, "Request validation failed.", wrong)
        if ("gpu" in asked) == ("cpu" in asked):
            return problem(400, "exactly one of gpu and cpu must be set")
        if self.balance <= 0:
            return problem(402, "insufficient balance")
        card = next((each for each in CARDS if each[0] == asked.get("gpu", {}).get("id")), None)
        if "gpu" in asked and (card is None or card[0] in self.empty):
            return problem(400, NONE_LEFT if card else "gpu.id is unknown")
        env = asked.get("env", {})
        hook = boot_of(unpacked(env[BOOT_VARIABLE]))[0] if BOOT_VARIABLE in env else ""
        pod = f"pod{self.next_number():06d}"
        count = asked.get("gpu", {}).get("count", 1)
        handle = self.machines.start(pod, hook, env.get("PUBLIC_KEY", ""), card[1] if card else "", count)
        self.pods[pod] = Pod(pod, asked, self.now(), handle, center=asked.get("dataCenterIds", [None])[0])
        return Reply(201, self._shape(self.pods[pod]))

    def _list(self, request: Request) -> Reply:
        shown = [pod for pod in self.pods.values() if self.now() >= pod.born + self.late_s]
        return Reply(200, {"pods": [self._shape(pod) for pod in shown]})

    def _get(self, request: Request) -> Reply:
        pod, (dead, at) = self.pods.get(request.parts[0]), self.ended.get(request.parts[0], (None, 0.0))
        if dead is not None and self.now() < at + self.ghost_s:
            return Reply(200, self._shape(dead))
        return Reply(200, self._shape(pod)) if pod else problem(404, "pod not found")

    def _delete(self, request: Request) -> Reply:
        pod = self.pods.pop(request.parts[0], None)
        if pod is None:
            return problem(404, "pod not found")
        self.machines.kill(pod.handle)
        pod.status = "TERMINATED"
        self.ended[pod.id] = (pod, self.now())
        return Reply(204)

    def _shape(self, pod: Pod) -> dict[str, Any]:
        place = self.machines.place(pod.handle)
        status = pod.status or ("PROVISIONING" if self.now() < pod.born + self.boot_s else "RUNNING")
        if status == "RUNNING" and place is None:
            status = "EXITED"
        runs = status == "RUNNING" and place is not None
        direct = None
        if runs and place is not None and "22/tcp" in pod.asked.get("ports", []):
            direct = {"host": place[0], "port": place[1], "username": place[2], "command": f"ssh {place[0]}"}
        asked = pod.asked
        kind: dict[str, Any] = {"gpu": asked["gpu"]} if "gpu" in asked else {"cpu": {**asked["cpu"], "memory": 8}}
        return {
            "id": pod.id, "name": asked["name"], "image": asked["image"], "args": asked.get("args", ""),
            "disk": asked.get("disk", 20), "ports": asked.get("ports", []), "env": asked.get("env", {}),
            "registry": None, "status": status, "actions": ["terminate"], "mounts": {}, **kind,
            "cloud": asked.get("cloud", "SECURE"), "dataCenterId": pod.center, "cudaVersion": None,
            "ssh": {"proxy": None, "direct": direct}, "template": None, "cost": 0.44 if runs else 0.0,
            "locked": False, "globalNetworking": {"enabled": False}, "runtime": {"uptime": 1} if runs else None,
            "createdAt": moment(pod.born), "startedAt": moment(pod.born) if runs else None,
        }  # fmt: skip


def problem(status: int, detail: str, errors: list[str] | None = None) -> Reply:
    """An RFC 9457 body."""
    return Reply(status, {"title": "No", "status": status, "detail": detail, **({"errors": errors} if errors else {})})


def moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat().replace("+00:00", "Z")

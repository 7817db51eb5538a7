"""AWS as a real moto server process behind a layer of our own for what moto does not do.

From moto: instances, volumes, tags, key pairs, security groups, subnets, types and zones, images, error codes of what
is missing or twice there. From this layer, marked so in the code: client tokens, lack of machines, quotas, throttling,
delays of boot and end, readers that lag, spot interruption with its reason, prices of spot and on-demand, parameters of
images, keys that are not valid, pages as small as wanted, and machines that really run behind their addresses.

What is asked is held to Amazon's published model of the API by boto3, which refuses anything else; what is answered is
read by the same model.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode
from xml.etree import ElementTree as xml

from fake_lambda import hook_of
from fake_machines import Banner
from fake_metadata import FakeMetadata
from fake_rest import GPUS, FakeApi, Reply, Request
from forwards import Forward
from moto_process import ask_moto, moto_port

from providers.base import GpuRow, ProviderConfig

AWS_GPUS = (*GPUS, GpuRow("L4", 24), GpuRow("T4", 16))
ZONES = ("a", "b", "c")
NS = "http://ec2.amazonaws.com/doc/2016-11-15/"
SPOT = {"g6.xlarge": "0.3", "g6.2xlarge": "0.35", "p5.48xlarge": "20", "m7i.large": "0.03"}  # dollars an hour
CARDS = {"g6.xlarge": ("L4", 1), "g4dn.xlarge": ("T4", 1)}
STATIC = ("DescribeInstanceTypes", "DescribeInstanceTypeOfferings", "DescribeImages")
PENDING, ENDING = ("0", "pending"), ("32", "shutting-down")
_static: dict[str, tuple[int, bytes]] = {}  # what moto takes a second to say, and always says
_accounts = itertools.count(1)


@dataclass
class Box:
    """One machine as the layer knows it beside moto."""

    handle: str
    born: float
    kind: str
    zone: str
    spot: bool
    address: str = ""
    ended: float | None = None
    reason: tuple[str, str] = ("", "")
    forward: Forward | None = None
    data: dict[str, Any] = field(default_factory=dict)


class AwsLayer(FakeApi):
    """One account. `boot_s`, `ending_s`, `lag_s` delay states and readers; `empty` are types or `type/zone` without
    machines; `vcpus` is a quota; `page` the rows of a page; `prices` the price list, None: not allowed to be read."""

    name, spec, origin = "aws", "aws-publishes-no-openapi.json", "derived"

    def __init__(self, machines: Any = None, metadata: FakeMetadata | None = None) -> None:
        super().__init__(machines)
        self.metadata = metadata
        self.number = next(_accounts)
        self.account = f"{self.number:012d}"
        self.key = "AKIAFAKE00000001 secret-of-the-fake"
        self.boot_s = self.ending_s = self.lag_s = 0.0
        self.empty: set[str] = set()
        self.vcpus: int | None = None
        self.page = 0
        self.prices: Mapping[str, str] | None = None
        self.spot_prices: dict[str, str] = dict(SPOT)
        self.boxes: dict[str, Box] = {}
        self.tokens: dict[tuple[str, str], tuple[str, bytes]] = {}
        self.public_keys: dict[str, str] = {}
        self.hung: set[str] = set()  # regions that do not answer
        self._let_go = threading.Event()

    # --- use ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> AwsLayer:
        moto_port()  # by this thread, whose end would end it
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()
        with socket.create_server(("127.0.0.1", 0)) as probe:
            self.port = self.machines.port if isinstance(self.machines, Banner) else probe.getsockname()[1]
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._let_go.set()
        for box in self.boxes.values():
            if box.forward is not None:
                box.forward.close()
        super().__exit__(kind, *rest)

    def settings(self) -> dict[str, Any]:
        own = {"metadata_url": self.metadata.url} if self.metadata is not None else {}
        return {"url": self.url, "ssh_port": self.port, "regions": ["us-east-1"], **own}

    def config(self, home: Any, deployment: str = "contract", **settings: Any) -> ProviderConfig:
        config = super().config(home, deployment, **settings)
        return ProviderConfig(config.deployment, home, AWS_GPUS, config.settings, config.secret)

    @property
    def running(self) -> list[str]:
        """Machines that bill."""
        return [name for name, box in self.boxes.items() if box.ended is None]

    @property
    def keys(self) -> dict[str, str]:
        return self.public_keys

    def things(self, region: str = "us-east-1") -> dict[str, list[str]]:
        """What is left in moto: ids of volumes, keys and groups but the default ones."""
        found = {}
        for action, path in (
            ("DescribeVolumes", "volumeSet/item/volumeId"),
            ("DescribeKeyPairs", "keySet/item/keyPairId"),
            ("DescribeSecurityGroups", "securityGroupInfo/item"),
        ):
            root = xml.fromstring(self._moto({"Action": action, "Version": "2016-11-15"}, region)[1])
            rows: list[Any] = root.findall("/".join(f"{{*}}{part}" for part in path.split("/")))
            if action.endswith("Groups"):
                rows = [row.find("{*}groupId") for row in rows if row.findtext("{*}groupName") != "default"]
            found[action] = [str(row.text) for row in rows if row is not None]
        return found

    def reclaim(self, machine: str) -> None:
        """The market takes the machine."""
        with self.lock:
            if self.boxes[machine].ended is not None:
                return  # it was given back before
            self._end(machine, ("Server.SpotInstanceTermination", "Server.SpotInstanceTermination: Spot reclaimed"))

    def stop(self, machine: str, region: str = "us-east-1") -> None:
        """Somebody stops the machine by hand."""
        with self.lock:
            self.machines.kill(self.boxes[machine].handle)
            self._moto({"Action": "StopInstances", "Version": "2016-11-15", "InstanceId.1": machine}, region)

    # --- serving ------------------------------------------------------------------------------------------------------

    def answer(
        self, target: str, form: dict[str, str], body: bytes, region: str, key: str
    ) -> tuple[int, dict[str, str], bytes] | None:
        """(status, headers, body) of one request, None to close the connection."""
        action = target.rpartition(".")[2] or form.get("Action", "")
        if region in self.hung:
            self._let_go.wait(60)
            return None
        path = (
            f"/{action}/{form['InstanceId.1']}"
            if action.startswith("Desc") and "InstanceId.1" in form
            else f"/{action}"
        )
        with self.lock:
            fault = self._fault(Request("POST", path, (), {}, None))
            if fault is not None and fault.kind == "cut":
                self.calls.append(("POST", path, 0))
                return None
            if fault is not None and fault.kind == "refuse":
                self.calls.append(("POST", path, fault.reply.status))
                return _refusal(action, fault.reply)
            if key != self.key.split()[0]:
                message = "AWS was not able to validate the provided access credentials"
                done = error(401, "AuthFailure", message)
            elif target:
                done = self._json(action, json.loads(body or b"{}"))
            else:
                done = self._ec2(action, form, region)
            self.calls.append(("POST", path, done[0]))
            if fault is None:
                return done
            if fault.kind == "lost":
                return None
            return (200, {}, b"<html>busy</html>") if fault.kind == "garbage" else _refusal(action, fault.reply)

    def _moto(self, form: Mapping[str, str], region: str) -> tuple[int, bytes]:
        credential = f"AKIAFAKE/20261130/{region}/ec2/aws4_request"
        headers = {
            "Authorization": f"AWS4-HMAC-SHA256 Credential={credential}, SignedHeaders=host, Signature=0",
            "Content-Type": "application/x-www-form-urlencoded; charset=utf-8",
            "Host": f"ec2.{region}.amazonaws.com",
            "x-moto-account-id": self.account,
        }
        status, _, body = ask_moto("POST", "/", urlencode(form).encode(), headers)
        return status, body

    def _json(self, action: str, asked: dict[str, Any]) -> tuple[int, dict[str, str], bytes]:
        """Ours: the parameters of public images, and the price list."""
        if action == "GetParameter":
            if "deeplearning" in asked["Name"] or "canonical" in asked["Name"]:
                return _said({"Parameter": {"Name": asked["Name"], "Type": "String", "Value": "ami-1e749f67"}})
            return _said({"__type": "ParameterNotFound"}, 400)
        if self.prices is None:
            return _said({"__type": "AccessDeniedException", "Message": "not authorized: pricing:GetProducts"}, 400)
        wanted = {each["Field"]: each["Value"] for each in asked["Filters"]}
        price = self.prices.get(f"{wanted['instanceType']}/{wanted['regionCode']}")
        unit = {"pricePerUnit": {"USD": price}, "unit": "Hrs"}
        product = {"terms": {"OnDemand": {"X": {"priceDimensions": {"X.Y": unit}}}}}
        return _said({"PriceList": [json.dumps(product)] if price else []})

    def _ec2(self, action: str, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        special = getattr(self, f"_on_{action}", None)
        if special is not None:
            found: tuple[int, dict[str, str], bytes] = special(form, region)
            return found
        status, body = self._plain(action, form, region)
        return status, {}, body

    def _plain(self, action: str, form: dict[str, str], region: str) -> tuple[int, bytes]:
        if action in STATIC:
            kept = f"{region} {sorted(form.items())}"
            if kept not in _static:
                _static[kept] = self._moto(form, region)
            return _static[kept]
        if self.page and action in ("DescribeInstances", "DescribeVolumes") and "InstanceId.1" not in form:
            form = {**form, "MaxResults": str(self.page)}
        return self._moto(form, region)

    def _on_DescribeInstanceTypeOfferings(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        """Ours: the wildcards of its filter, which moto takes for names."""
        plain = {key: value for key, value in form.items() if not key.startswith("Filter.1.")}
        status, body = self._plain("DescribeInstanceTypeOfferings", plain, region)
        return status, {}, body

    def _on_ImportKeyPair(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        status, body = self._moto(form, region)
        if status == 200:
            self.public_keys[form["KeyName"]] = base64.b64decode(form["PublicKeyMaterial"]).decode()
        return status, {}, body

    def _on_DeleteKeyPair(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        name = form.get("KeyName", "")
        if "KeyPairId" in form:
            ask = {"Action": "DescribeKeyPairs", "Version": "2016-11-15", "KeyPairId.1": form["KeyPairId"]}
            found = re.search(rb"<keyName>([^<]*)</keyName>", self._moto(ask, region)[1])
            name = found[1].decode() if found else name
            form = {**form, "KeyName": name}
        status, body = self._moto(form, region)
        self.public_keys.pop(name, None)
        return status, {}, body

    def _on_DeleteSecurityGroup(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        """Ours: a group that a machine still holds is not deleted."""
        held = any(
            box.data.get("group") == form.get("GroupId") and self._state(box) != "terminated"
            for box in self.boxes.values()
        )
        if held:
            return error(400, "DependencyViolation", f"resource {form.get('GroupId')} has a dependent object")
        status, body = self._moto(form, region)
        return status, {}, body

    def _on_RunInstances(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        """Ours: client tokens, lack of machines, quotas, machines that run."""
        token = form.get("ClientToken", "")
        print_of = hashlib.sha256(repr(sorted(form.items())).encode()).hexdigest()
        if token and (region, token) in self.tokens:
            before, answer = self.tokens[(region, token)]
            if before != print_of:
                message = (
                    "Arguments on this idempotent request are inconsistent with arguments used in previous request"
                )
                return error(400, "IdempotentParameterMismatch", message)
            return 200, {}, answer
        kind, zone = form["InstanceType"], form.get("Placement.AvailabilityZone", "")
        spot = form.get("InstanceMarketOptions.MarketType") == "spot"
        refused = self._refused(form, kind, zone, spot)
        if refused is not None:
            return refused
        status, body = self._moto(form, region)
        if status != 200:
            return status, {}, body
        machine = re.search(rb"<instanceId>([^<]+)</instanceId>", body)
        assert machine is not None, body
        name = machine[1].decode()
        hook = hook_of(base64.b64decode(form["UserData"]).decode())
        gpu, count = CARDS.get(kind, ("", 0))
        if self.metadata is not None:
            self.metadata.machines.append(name)
        handle = self.machines.start(name, hook, self.public_keys.get(form.get("KeyName", ""), ""), gpu, count)
        box = Box(handle, self.now(), kind, zone, spot)
        box.data = {"group": form.get("NetworkInterface.1.SecurityGroupId.1"), "form": form, "region": region}
        box.address = "127.0.0.1"
        if not isinstance(self.machines, Banner):
            box.address = f"127.77.{self.number % 250}.{len(self.boxes) + 1}"
            box.forward = Forward((box.address, self.port), lambda: self.machines.place(handle))
        self.boxes[name] = box
        body = self._shaped(body, region)
        if token:
            self.tokens[(region, token)] = (print_of, body)
        return 200, {}, body

    def _refused(
        self, form: dict[str, str], kind: str, zone: str, spot: bool
    ) -> tuple[int, dict[str, str], bytes] | None:
        if {kind, f"{kind}/{zone}"} & self.empty:
            message = f"We currently do not have sufficient {kind} capacity in the Availability Zone you requested"
            return error(500, "InsufficientInstanceCapacity", message)
        if self.vcpus is not None and 4 * len(self.running) + 4 > self.vcpus:
            code = "MaxSpotInstanceCountExceeded" if spot else "VcpuLimitExceeded"
            return error(400, code, f"You have requested more vCPU capacity than your current limit of {self.vcpus}")
        if spot and float(form["InstanceMarketOptions.SpotOptions.MaxPrice"]) < float(self.spot_prices.get(kind, "9")):
            return error(400, "SpotMaxPriceTooLow", "Your Spot request price is lower than the minimum required")
        if form.get("ImageId", "").startswith("ami-0000"):
            return error(400, "InvalidAMIID.NotFound", f"The image id '[{form['ImageId']}]' does not exist")
        return None

    def _on_TerminateInstances(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        names = [value for key, value in form.items() if key.startswith("InstanceId.")]
        status, body = self._moto(form, region)
        if status == 200:
            for name in names:
                if name in self.boxes and self.boxes[name].ended is None:
                    self._end(name, ("Client.UserInitiatedShutdown", "User initiated"), told=True)
        return status, {}, body

    def _end(self, name: str, reason: tuple[str, str], told: bool = False) -> None:
        box = self.boxes[name]
        self.machines.kill(box.handle)
        box.ended, box.reason = self.now(), reason
        if not told:
            form = {"Action": "TerminateInstances", "Version": "2016-11-15", "InstanceId.1": name}
            self._moto(form, box.data["region"])

    def _on_DescribeInstances(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        """Ours: readers that lag, machines that ended by themselves, states, reasons and addresses."""
        for name, box in self.boxes.items():
            late = self.now() < box.born + self.lag_s
            if late and form.get("InstanceId.1") == name:
                return error(400, "InvalidInstanceID.NotFound", f"The instance ID '{name}' does not exist")
            own_end = box.data["form"].get("InstanceInitiatedShutdownBehavior") == "terminate" and box.ended is None
            if own_end and not isinstance(self.machines, Banner) and self.machines.place(box.handle) is None:
                self._end(name, ("Client.InstanceInitiatedShutdown", "the instance shut itself down"))
        status, body = self._plain("DescribeInstances", form, region)
        return status, {}, self._shaped(body, region) if status == 200 else body

    def _state(self, box: Box) -> str:
        if box.ended is not None:
            return "shutting-down" if self.now() < box.ended + self.ending_s else "terminated"
        return "pending" if self.now() < box.born + self.boot_s else "running"

    def _shaped(self, body: bytes, region: str) -> bytes:
        """A description of machines as AWS would give it now."""
        root = xml.fromstring(body)
        space = root.tag.partition("}")[0] + "}"
        xml.register_namespace("", space.strip("{}"))
        tag = lambda name: space + name  # noqa: E731
        for holder in root.iter(tag("instancesSet")):
            for item in list(holder.findall(tag("item"))):
                name = item.findtext(tag("instanceId")) or ""
                box = self.boxes.get(name)
                if box is None:
                    continue
                if self.now() < box.born + self.lag_s and root.tag == tag("DescribeInstancesResponse"):
                    holder.remove(item)
                    continue
                state = self._state(box)
                shown = item.find(tag("instanceState"))
                if state in ("pending", "shutting-down") and shown is not None:
                    code, word = PENDING if state == "pending" else ENDING
                    for part, value in (("code", code), ("name", word)):
                        found = shown.find(tag(part))
                        if found is not None:
                            found.text = value
                if box.reason[0]:
                    reason = item.find(tag("stateReason"))
                    reason = xml.SubElement(item, tag("stateReason")) if reason is None else reason
                    for part, value in zip(("code", "message"), box.reason, strict=True):
                        found = reason.find(tag(part))
                        (xml.SubElement(reason, tag(part)) if found is None else found).text = value
                for found in item.findall(tag("ipAddress")):
                    item.remove(found)
                if state == "running":
                    xml.SubElement(item, tag("ipAddress")).text = box.address
        return xml.tostring(root)

    def _on_DescribeSpotPriceHistory(self, form: dict[str, str], region: str) -> tuple[int, dict[str, str], bytes]:
        """Ours: an old and a new price for each type and zone, the newest of each on the second page."""
        kinds = [value for key, value in form.items() if key.startswith("InstanceType.")]
        second = form.get("NextToken") == "second"
        when = datetime.fromtimestamp(self.now() - (0 if second else 7200), UTC).strftime("%Y-%m-%dT%H:%M:%S.000Z")
        rows = [
            f"<item><instanceType>{kind}</instanceType><productDescription>Linux/UNIX</productDescription>"
            f"<spotPrice>{self.spot_prices[kind] if second else '99.0'}</spotPrice><timestamp>{when}</timestamp>"
            f"<availabilityZone>{region}{zone}</availabilityZone></item>"
            for kind in kinds
            for zone in ZONES
            if kind in self.spot_prices
        ]
        token = "" if second else "<nextToken>second</nextToken>"
        body = (
            f'<DescribeSpotPriceHistoryResponse xmlns="{NS}"><requestId>r</requestId><spotPriceHistorySet>'
            f"{''.join(rows)}</spotPriceHistorySet>{token}</DescribeSpotPriceHistoryResponse>"
        )
        return 200, {}, body.encode()


def no_credentials(monkeypatch: Any, folder: Any) -> None:
    """Nothing of the person who runs the tests is found by boto3."""
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN", "PROFILE", "REGION", "DEFAULT_REGION"):
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(folder / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def error(status: int, code: str, message: str, headers: Mapping[str, str] | None = None) -> Any:
    """EC2's error body."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>{code}</Code>'
        f"<Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
    )
    return status, dict(headers or {}), body.encode()


def _refusal(action: str, reply: Reply) -> Any:
    """A scripted answer: a status as AWS says it, or a page without its rows."""
    if reply.status == 200:
        return 200, {}, f'<{action}Response xmlns="{NS}"><requestId>r</requestId></{action}Response>'.encode()
    usual = {429: (503, "RequestLimitExceeded"), 500: (500, "InternalError"), 503: (503, "Unavailable"),
             409: (400, "IncorrectState")}  # fmt: skip
    status, code = usual.get(reply.status, (reply.status, "OperationNotPermitted"))
    if isinstance(reply.body, Mapping) and "code" in reply.body:
        status, code = reply.status, str(reply.body["code"])
    return error(status, code, "said by a test", reply.headers)


def _said(body: Any, status: int = 200) -> tuple[int, dict[str, str], bytes]:
    return status, {"Content-Type": "application/x-amz-json-1.1"}, json.dumps(body).encode()


def _handler(company: AwsLayer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            credential = re.search(r"Credential=([^/]+)/[^/]+/([^/]+)/", self.headers.get("Authorization", ""))
            key, region = (credential[1], credential[2]) if credential else ("", "us-east-1")
            target = self.headers.get("X-Amz-Target", "")
            form = {} if target else dict(parse_qsl(body.decode(), keep_blank_values=True))
            done = company.answer(target, form, body, region, key)
            if done is None:
                self.close_connection = True
                return
            status, headers, said = done
            self.send_response(status)
            for name, value in ({"Content-Type": "text/xml"} | headers).items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler

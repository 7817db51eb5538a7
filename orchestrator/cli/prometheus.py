"""Running jobs in Prometheus' text format, for node_exporter's textfile collector.

Rules: one family at a time with its HELP and TYPE; a value that is unknown has no line; a name is never renamed.
Base units: bytes, seconds, ratios of 1.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.cli.vitals import HEAT_BITS, Vitals

MIB = 1024.0 * 1024.0


@dataclass(frozen=True)
class Sick:
    """One job for the metrics: its labels, what it costs, its alarms, and its machine's vitals."""

    labels: Mapping[str, str]  # job (the id) and name
    info: Mapping[str, str]
    spent: Mapping[str, float]  # by currency
    hourly: float
    step: float
    total: float
    alarms: Sequence[str]
    vitals: Vitals | None


Lines = list[tuple[Mapping[str, str], float]]


def text(jobs: Iterable[Sick], now: float) -> str:
    """The whole page."""
    families: dict[tuple[str, str], Lines] = {family: [] for family in FAMILIES}
    for job in jobs:
        for name, labels, value in _values(job, now):
            family = next(key for key in families if key[0] == name)
            families[family].append(({**job.labels, **labels}, value))
    out = []
    for (name, about), lines in families.items():
        out += [f"# HELP {name} {about}", f"# TYPE {name} gauge"]
        out += [f"{name}{_labels(labels)} {_number(value)}" for labels, value in lines if not math.isnan(value)]
    return "\n".join(out) + "\n"


FAMILIES: Sequence[tuple[str, str]] = (
    ("gpujob_job_info", "A job that is not over; what it is and where stands in the labels."),
    ("gpujob_job_spent", "Money spent so far, in the currency of the label."),
    ("gpujob_job_hourly", "What its open machines cost an hour, in the currency of the label."),
    ("gpujob_job_step", "The last step that its log named."),
    ("gpujob_job_steps_planned", "The last step that there will be."),
    ("gpujob_job_steps_per_second", "Steps a second over the last minutes."),
    ("gpujob_job_throughput", "Throughput as the job itself reports it, in its own unit."),
    ("gpujob_alarm", "1 for each alarm that holds."),
    ("gpujob_sample_age_seconds", "Age of the machine's last sample."),
    ("gpujob_gpu_utilization_ratio", "Use of a card, 0 to 1."),
    ("gpujob_gpu_memory_used_bytes", "Used memory of a card."),
    ("gpujob_gpu_memory_total_bytes", "Memory of a card."),
    ("gpujob_gpu_temperature_celsius", "Temperature of a card."),
    ("gpujob_gpu_power_watts", "Power draw of a card."),
    ("gpujob_gpu_throttled", "1 while heat or the power supply slows a card down."),
    ("gpujob_machine_cpu_ratio", "Busy share of the machine's CPUs, 0 to 1."),
    ("gpujob_machine_iowait_ratio", "Share of CPU time that waits for a disk, 0 to 1."),
    ("gpujob_machine_cpus", "CPUs that the job may use."),
    ("gpujob_run_cpu_cores", "Cores that the run's own processes use."),
    ("gpujob_machine_memory_used_bytes", "Used main memory."),
    ("gpujob_machine_memory_total_bytes", "Main memory."),
    ("gpujob_machine_disk_free_bytes", "Free bytes of the job's disk."),
    ("gpujob_machine_disk_read_bytes_per_second", "Bytes read from disks a second."),
    ("gpujob_machine_disk_written_bytes_per_second", "Bytes written to disks a second."),
    ("gpujob_machine_network_received_bytes_per_second", "Bytes received a second."),
    ("gpujob_machine_network_sent_bytes_per_second", "Bytes sent a second."),
)


def _values(job: Sick, now: float) -> Iterable[tuple[str, Mapping[str, str], float]]:
    money = {"currency": job.info.get("currency", ""), "play": job.info.get("play", "false")}
    about = {key: value for key, value in job.info.items() if key not in money}
    yield "gpujob_job_info", about, 1.0
    for currency, amount in job.spent.items():
        yield "gpujob_job_spent", {**money, "currency": currency}, amount
    yield "gpujob_job_hourly", money, job.hourly
    yield "gpujob_job_step", {}, job.step
    yield "gpujob_job_steps_planned", {}, job.total
    for kind in dict.fromkeys(job.alarms):  # a line twice would cost the whole page
        yield "gpujob_alarm", {"kind": kind}, 1.0
    if job.vitals is None:
        return
    last = job.vitals.last
    yield "gpujob_job_steps_per_second", {}, job.vitals.pace
    yield "gpujob_job_throughput", {}, last.rate
    yield "gpujob_sample_age_seconds", {}, max(0.0, now - last.at)
    for index, card in enumerate(last.cards):
        gpu = {"gpu": str(index)}
        yield "gpujob_gpu_utilization_ratio", gpu, card.util / 100
        yield "gpujob_gpu_memory_used_bytes", gpu, card.mem_used * MIB
        yield "gpujob_gpu_memory_total_bytes", gpu, card.mem_total * MIB
        yield "gpujob_gpu_temperature_celsius", gpu, card.temp
        yield "gpujob_gpu_power_watts", gpu, card.power
        hot = float(bool(int(card.throttle) & HEAT_BITS)) if card.throttle == card.throttle else math.nan
        yield "gpujob_gpu_throttled", gpu, hot
    yield "gpujob_machine_cpu_ratio", {}, last.cpu / 100
    yield "gpujob_machine_iowait_ratio", {}, last.iowait / 100
    yield "gpujob_machine_cpus", {}, last.cpus
    yield "gpujob_run_cpu_cores", {}, last.own
    yield "gpujob_machine_memory_used_bytes", {}, last.mem_used
    yield "gpujob_machine_memory_total_bytes", {}, last.mem_total
    yield "gpujob_machine_disk_free_bytes", {}, last.disk_free
    yield "gpujob_machine_disk_read_bytes_per_second", {}, last.disk_read
    yield "gpujob_machine_disk_written_bytes_per_second", {}, last.disk_write
    yield "gpujob_machine_network_received_bytes_per_second", {}, last.net_in
    yield "gpujob_machine_network_sent_bytes_per_second", {}, last.net_out


def _labels(labels: Mapping[str, str]) -> str:
    def escaped(value: str) -> str:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def _number(value: float) -> str:
    return repr(value) if value != int(value) or abs(value) > 2**53 else str(int(value))


def write(path: Path, page: str) -> None:
    """Put the page in place whole: the collector must never read half of one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # no .prom: the collector reads those only
    fresh.write_text(page, encoding="utf-8")
    fresh.chmod(0o644)  # the collector runs as another user
    os.replace(fresh, path)

"""`alarms:` of the spec: thresholds of the rules that watch a running job. Rules and defaults: `orchestrator`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from jobspecs import fields as f
from jobspecs.block import Block

_STOP = "Save and stop the job (reason `stalled`) instead of only saying so."
_RELAUNCH = (
    "Save, stop, and go on from the newest checkpoint on another machine; a second time only after a newer"
    " checkpoint, else the job ends as `stalled`."
)


class UtilizationAlarm(Block):
    """An alarm on a share over a time; what is left out keeps its default."""

    percent: Annotated[int | None, *f.whole(1, 100)] = Field(None, description="The share.")
    duration: f.DurationField | None = Field(None, alias="for", description="For this long.")
    stop: bool = Field(False, description=_STOP)
    relaunch: bool = Field(False, description=_RELAUNCH)


class TimeAlarm(Block):
    """An alarm on something that lasts."""

    duration: f.DurationField | None = Field(None, alias="for", description="For this long.")
    stop: bool = Field(False, description=_STOP)
    relaunch: bool = Field(False, description=_RELAUNCH)


class CountAlarm(Block):
    """An alarm on something that did not come so many times."""

    count: Annotated[int | None, *f.whole(1, 100)] = Field(None, description="How many.")
    stop: bool = Field(False, description=_STOP)
    relaunch: bool = Field(False, description=_RELAUNCH)


class NearAlarm(Block):
    """A word before something ends; it ends the job by itself."""

    duration: f.DurationField | None = Field(None, alias="for", description="So long before.")
    percent: Annotated[int | None, *f.whole(1, 100)] = Field(None, description="From this share on.")
    count: Annotated[int | None, *f.whole(1, 100)] = Field(None, description="From this number on.")


AlarmName = Literal[
    "stalled", "gpu_util_below", "card_idle", "gpu_memory_above", "throughput_below", "slowing", "leak",
    "machine_slow", "scaling", "no_checkpoint", "throttled", "gpu_lost", "disk_full", "reclaims", "ttl_near",
    "budget_near",
]  # fmt: skip


class Alarms(Block):
    """What is worth a word while the job runs, and what ends it. All are on, with the defaults of the documentation."""

    stalled: TimeAlarm | None = Field(None, description="No step, no log and no work; or no further step. 30m.")
    gpu_util_below: UtilizationAlarm | None = Field(None, description="All cards are used little. 70 % for 15m.")
    card_idle: UtilizationAlarm | None = Field(None, description="One of several cards does little. 50 % for 15m.")
    gpu_memory_above: UtilizationAlarm | None = Field(None, description="A card's memory is full. 95 % for 2m.")
    throughput_below: UtilizationAlarm | None = Field(None, description="Of the usual steps a minute. 50 % for 5m.")
    slowing: UtilizationAlarm | None = Field(None, description="Steps become rarer by this share. 20 % in 1h.")
    machine_slow: UtilizationAlarm | None = Field(
        None, description="Of the pace of the same program on other machines of this kind. 80 % for 15m."
    )
    scaling: UtilizationAlarm | None = Field(
        None, description="Throughput of several cards, of as many times that of fewer. 60 % for 15m."
    )
    leak: TimeAlarm | None = Field(None, description="Memory grows without end. 1h.")
    no_checkpoint: CountAlarm | None = Field(None, description="Intervals of `checkpoint.every` without one. 2.")
    throttled: TimeAlarm | None = Field(None, description="Heat or power slows a card down. 10m.")
    gpu_lost: TimeAlarm | None = Field(None, description="Cards that cannot be asked any more. 3m.")
    disk_full: UtilizationAlarm | None = Field(None, description="The job's disk is full. 95 % for 2m.")
    reclaims: NearAlarm | None = Field(None, description="Reclaims within six hours. 3.")
    ttl_near: NearAlarm | None = Field(None, description="The hard end comes before the work is done. 30m before.")
    budget_near: NearAlarm | None = Field(None, description="The budget ends before the work is done. 80 %.")
    warm_up: f.DurationField | None = Field(
        None, description="Not looked at so long after the first step (5m), or without steps after the start (15m)."
    )
    off: Annotated[tuple[AlarmName, ...], BeforeValidator(f.one_or_many)] = Field(
        (), description="Alarms that are not wanted."
    )

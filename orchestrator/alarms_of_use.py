"""Alarms on use: cards that do little and why, full memory, heat, lost cards, a full disk. Pure.

An alarm on use needs every minute of its time below the threshold: one busy minute is an evaluation, not a fault. The
likely cause is read from what else the machine did meanwhile: CPUs, processes that wait for a disk, the network.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from orchestrator.look import CALM, COVERED, MINUTE, Look, Rule, Said, hot
from orchestrator.points import Point, mean
from orchestrator.spans import span

IDLE_UTIL = 5.0  # %: nothing computes
BUSY_CARD = 60.0  # a card that works, beside one that does not
EMPTY_MIB = 600.0  # a context and nothing else
WAITING = 0.5  # processes of the run that wait for a disk, on average: one in every second look
BIG_FREE = 20e9  # bytes: five percent of a large disk is room enough
FAST_NET = 10e6  # bytes/s: data comes over the network while it is needed


def low_use(look: Look, rule: Rule) -> Said:
    minutes = [p for p in look.last(rule.duration) if p.use == p.use]
    if not minutes or look.serve or len(minutes) < CALM * rule.duration / MINUTE:
        return None
    if max(p.use for p in minutes) >= rule.percent:
        return None
    use = mean(p.use for p in minutes)
    level = "long below 50 %: a problem of the program or its input" if use < 50 else f"all below {rule.percent:g} %"
    cause, todo = _cause(minutes, look.cards, look.launcher)
    return f"GPU use {use:.0f} % in the last {span(rule.duration)}, {level}, {look.price}", cause, todo


def card_idle(look: Look, rule: Rule) -> Said:
    minutes = [p for p in look.last(rule.duration) if len(p.cards) > 1]
    if not minutes or look.serve or len(minutes) < CALM * rule.duration / MINUTE:
        return None
    count = min(len(p.cards) for p in minutes)
    uses = [mean(p.cards[i].util for p in minutes) for i in range(count)]
    idle = [i for i in range(count) if all(p.cards[i].util < rule.percent for p in minutes)]
    busy = [i for i in range(count) if uses[i] >= BUSY_CARD]
    if not idle or not busy:
        return None
    names = ", ".join(f"GPU {i} at {uses[i]:.0f} %" for i in idle)
    text = f"{names} in the last {span(rule.duration)}, beside GPU {busy[0]} at {uses[busy[0]]:.0f} %"
    text += f": {len(idle)} of {count} cards are paid for and idle, {look.price}"
    memory = [mean(p.cards[i].mem_used for p in minutes) for i in range(count)]
    if len(busy) == 1 and max(uses[i] for i in idle) < IDLE_UTIL and not look.launcher:
        cause = "the program uses one card only: `run` has no launcher (torchrun, accelerate, deepspeed)"
        todo = 'torchrun --nproc_per_node="$GPUJOB_NUM_GPUS" train.py, or rent one card'
    elif busy == [0] and memory[0] > 1.2 * max(memory[1:]) and not look.launcher:
        cause = "DataParallel: card 0 gathers and scatters for all the others"
        todo = "DistributedDataParallel by torchrun, one process a card"
    else:
        cause = "the work is shared unevenly: a pipeline stage, a rank that waits or died, CUDA_VISIBLE_DEVICES"
        todo = f"gpujob top {look.name}; look at the log of the rank of GPU {idle[0]}"
    return text, cause, todo


def memory_full(look: Look, rule: Rule) -> Said:
    if not look.fresh or look.serve:
        return None
    recent = [p for p in look.run if p.at + MINUTE > look.now - rule.duration]
    if len(recent) < COVERED * rule.duration / MINUTE or look.now - look.run[0].at < rule.duration:
        return None
    cards = [(i, [p.cards[i] for p in recent if i < len(p.cards)]) for i in range(max(len(p.cards) for p in recent))]
    for index, each in cards:
        if len(each) == len(recent) and all(card.full >= rule.percent for card in each):
            card = each[-1]
            text = f"GPU {index} uses {card.mem_used:.0f} of {card.mem_total:.0f} MiB ({card.full:.0f} %)"
            cause = "one longer batch will not fit (a framework that takes all memory at its start shows the same)"
            return (
                text,
                cause,
                "a smaller batch with accumulation, AMP, checkpointed activations, or a card with more memory",
            )
    return None


def throttled(look: Look, rule: Rule) -> Said:
    minutes = [p for p in look.run if p.at + MINUTE > look.now - rule.duration]
    if not look.fresh or len(minutes) < COVERED * rule.duration / MINUTE or look.now - look.run[0].at < rule.duration:
        return None
    why = hot(minutes)
    if not why:
        return None
    hottest = max((c.temp for p in minutes for c in p.cards if c.temp == c.temp), default=math.nan)
    at = f" at {hottest:.0f} °C" if hottest == hottest else ""
    text = f"a card slows itself down for {span(rule.duration)}{at}: {', '.join(why)}"
    return text, "the host's cooling or power supply", "another machine: cancel and resume, or report the host"


def gpu_lost(look: Look, rule: Rule) -> Said:
    minutes = [p for p in look.run if p.at + MINUTE > look.now - rule.duration]
    if not look.fresh or not look.cards or len(minutes) < COVERED * rule.duration / MINUTE:
        return None
    had = max((len(p.cards) for p in look.run), default=0)
    now = max(len(p.cards) for p in minutes)
    if not had or now >= had or look.now - look.run[0].at < rule.duration:
        return None
    text = f"nvidia-smi shows {now} cards instead of {had} for {span(rule.duration)}, {look.price}"
    return (
        text,
        "the driver or the container lost them",
        f"gpujob describe {look.name}; if no step comes, another machine",
    )


def disk_full(look: Look, rule: Rule) -> Said:
    minutes = [p for p in look.minutes if p.at + MINUTE > look.now - rule.duration]
    if not look.fresh or len(minutes) < COVERED * rule.duration / MINUTE:
        return None
    limit = 1 - rule.percent / 100
    if not all(p.disk_total > 0 and p.disk_free < min(limit * p.disk_total, BIG_FREE) for p in minutes):
        return None
    last = minutes[-1]
    text = f"{last.disk_free / 1e9:.1f} of {last.disk_total / 1e9:.0f} GB of the disk are free"
    return (
        text,
        "checkpoints, caches or results fill it; the next save may break",
        "keep fewer checkpoints, or a larger `disk`",
    )


def _cause(minutes: Sequence[Point], cards: int, launcher: bool) -> tuple[str, str]:
    """Why the cards do little, and what helps, by what the rest of the machine did in the same minutes."""
    memory = max((c.mem_used for p in minutes for c in p.cards if c.mem_used == c.mem_used), default=math.nan)
    use = mean(p.use for p in minutes)
    cpus, own, top = mean(p.cpus for p in minutes), mean(p.own for p in minutes), mean(p.top for p in minutes)
    if memory < EMPTY_MIB and use < IDLE_UTIL:
        return (
            f"nothing is on the cards ({memory:.0f} MiB): the program runs on the CPU",
            "torch.cuda.is_available() on the machine; a +cpu wheel, a missing .to('cuda'), CUDA_VISIBLE_DEVICES",
        )
    if mean(p.blocked for p in minutes) >= WAITING or mean(p.iowait for p in minutes) * cpus >= 70.0:
        read = mean(p.disk_read for p in minutes) / 1e6
        said = f", {read:.0f} MB/s read" if read == read else ""
        return (
            f"I/O wait: processes of the run wait for the disk{said}",
            "data on the local disk, larger files (shards), a cache in memory; more workers only add waiting",
        )
    if cpus >= 1 and own >= 0.85 * cpus:
        return (
            f"CPU-bound: the run uses {own:.1f} of {cpus:.0f} cores",
            "prepare the data once beforehand, decode on the GPU, or rent a machine with more cores a card",
        )
    if mean(p.net_in for p in minutes) >= FAST_NET:
        rate = mean(p.net_in for p in minutes) / 1e6
        return f"it waits for data from the network ({rate:.0f} MB/s)", "bring the data with `data:`, or prefetch it"
    if top >= 0.9 and cpus >= 2 and own < 0.5 * cpus:
        return (
            f"CPU-bound in one process ({top:.1f} cores) while {cpus - own:.0f} of {cpus:.0f} cores are free",
            "num_workers, pin_memory, prefetch; fewer .item() and .cpu() between kernels; torch.compile",
        )
    full = max((c.full for p in minutes for c in p.cards if c.full == c.full), default=math.nan)
    if full >= 60:
        return (
            f"data loading: the memory of the card is {full:.0f} % used and it waits for the next batch",
            "more num_workers, pin_memory, prefetch_factor; larger files",
        )
    return (
        "many small operations, a small batch, or .item() and .cpu() copies in each step",
        "a larger batch, fused operations (torch.compile), logging every 50 steps; a smaller card costs less",
    )

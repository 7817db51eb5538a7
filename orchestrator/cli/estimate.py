"""`estimate`: the GPU memory that a model needs, which cards hold it, what would fit instead. No network."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from orchestrator.cli import exits
from orchestrator.cli.commands import Command, add_output
from orchestrator.cli.exits import CliError
from orchestrator.cli.output import print_json, put, table

if TYPE_CHECKING:
    from jobspecs.gpus import GpuAsk
    from jobspecs.memory import Estimate, Model

# What each kind of job means for the machine: asked before any price is compared.
ADVICE = (
    "first     a run that must end (train), requests to answer (serve) or pieces that can be redone (batch)?",
    "          train takes spot only when it can resume, batch may, serve never",
    "just enough is best: of the cards that hold it, the one that is cheapest to finish, not the biggest",
    "next      `model:` in a spec filters offers by this; `gpujob plan` adds how long and how much",
)
NAMES_SHOWN = 3  # of the classes of one memory size
METHOD_WORDS = {"inference": "inference", "lora": "LoRA", "qlora": "QLoRA", "full": "full fine-tune"}


def _add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="PARAMS", help="number of parameters: 7b, 350M")
    parser.add_argument("--method", choices=tuple(METHOD_WORDS), default="inference", help="what is done with it")
    parser.add_argument("--dtype", choices=("fp32", "bf16", "fp16", "int8", "int4"), default="bf16", help="of weights")
    parser.add_argument("--batch", type=int, metavar="N", help="sequences per step and card (training)")
    parser.add_argument("--seq-len", type=int, metavar="TOKENS", help="tokens of each sequence (training)")
    parser.add_argument("--context", type=int, metavar="TOKENS", help="tokens of each request (inference)")
    parser.add_argument("--concurrency", type=int, metavar="N", help="requests at one time (inference)")
    parser.add_argument("--layers", type=int, metavar="N", help="number of layers")
    parser.add_argument("--hidden", type=int, metavar="N", help="hidden size")
    parser.add_argument("--heads", type=int, metavar="N", help="attention heads")
    parser.add_argument("--kv-heads", type=int, metavar="N", help="key-value heads, when grouped")
    parser.add_argument("--gpu", metavar="GPU", help="say whether these cards hold it: RTX-4090, A100-80GB:2")
    add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Print the estimate."""
    from jobspecs.gpus import parse_gpu
    from jobspecs.memory import estimate
    from jobspecs.problems import Refusal

    try:
        found = estimate(model_of(args))
        ask = parse_gpu(args.gpu) if args.gpu else None
    except Refusal as refusal:
        raise CliError(refusal.reason, where="gpujob estimate", next=refusal.hint) from None
    if args.output == "json":
        print_json(as_json(found, ask))
    else:
        put("\n".join(text(found, ask)))
    return exits.OK


def model_of(args: argparse.Namespace) -> Model:
    """The options as a model; context and concurrency are the other names of length and batch."""
    from jobspecs.memory import Model, parse_params

    names = ("batch", "seq_len", "context", "concurrency", "layers", "hidden", "heads", "kv_heads")
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise CliError(f"--{name.replace('_', '-')} must be 1 or more, got {value}", where="gpujob estimate")
    inference = args.method == "inference"
    for name, other in (("batch", "concurrency"), ("seq_len", "context")):
        wrong = name if inference else other
        if getattr(args, wrong) is not None and not (inference and getattr(args, other) is None):
            right = other if inference else name
            raise CliError(
                f"--{wrong.replace('_', '-')} does not go with {args.method}", where="gpujob estimate",
                next=f"write --{right.replace('_', '-')}",
            )  # fmt: skip
    return Model(
        parse_params(args.model), args.method, args.dtype,
        batch=args.batch or args.concurrency or 0, seq_len=args.seq_len or args.context or 0,
        layers=args.layers or 0, hidden=args.hidden or 0, heads=args.heads or 0, kv_heads=args.kv_heads or 0,
    )  # fmt: skip


def gb(value: float) -> str:
    """`3.5 GB`, `14 GB`, at most two decimals."""
    return f"{value:.2f}".rstrip("0").rstrip(".") + " GB"


def title(found: Estimate) -> str:
    """The model and use in a few words."""
    model = found.model
    billions = model.params / 1e9
    size = f"{billions:g}B" if billions >= 1 else f"{model.params / 1e6:g}M"
    dtype = "4-bit weights" if model.method == "qlora" else model.dtype
    return f"{size} {METHOD_WORDS[model.method]}, {dtype}"


def text(found: Estimate, ask: GpuAsk | None) -> Iterator[str]:
    """The lines for a terminal."""
    yield title(found)
    yield ""
    for part in found.parts:
        each = "   (on every card)" if part.per_card else ""
        yield f"  {part.name:<15} {gb(part.gb):>10}{each}"
    yield f"  {'total':<15} {gb(found.high):>10}"
    yield ""
    yield f"needs     {need_text(found)}"
    for line in found.assumed:
        yield f"assumed   {line}"
    yield ""
    if ask is not None:
        yield from verdict(found, ask)
        yield ""
    yield table(("GPU", "MEMORY", "CARDS", "NOTE"), list(class_rows(found)), right=("MEMORY",), state="")
    yield ""
    yield from instead(found)
    yield from ADVICE


def need_text(found: Estimate) -> str:
    """What a card must have, and why that much."""
    method = found.model.method
    if method == "inference":
        card = f"; the next card has {found.tier} GB" if found.tier else "; no single card has that"
        return f"{gb(found.need)}: the total with 20 % of the card left free{card}"
    if method == "full":
        return f"{gb(found.low)} to {gb(found.high)}; cards are counted at {gb(found.need)}"
    return f"{gb(found.low)} with {found.near}, {gb(found.high)} without"


def class_rows(found: Estimate) -> Iterator[tuple[str, ...]]:
    """Classes of one memory size in one row: how many cards, and what to know; the too small ones in one."""
    from itertools import groupby

    from jobspecs.gpus import GPU_CLASSES

    too_small = 0
    for vram, group in groupby(sorted(GPU_CLASSES, key=lambda gpu: gpu.vram_gb), key=lambda gpu: gpu.vram_gb):
        gpus = list(group)
        cards = found.cards(gpus[0])
        if cards is None:
            too_small = vram
            continue
        if too_small:
            yield (f"up to {too_small} GB", f"{too_small} GB", "no", "too small, 8 of them too")
            too_small = 0
        more = f" and {len(gpus) - NAMES_SHOWN} more" if len(gpus) > NAMES_SHOWN else ""
        names = ", ".join(gpu.name for gpu in gpus[:NAMES_SHOWN])
        yield (names + more, f"{vram} GB", str(cards), _note(found, vram, cards))
    if too_small:
        yield (f"up to {too_small} GB", f"{too_small} GB", "no", "too small, 8 of them too")


def _note(found: Estimate, vram: int, cards: int) -> str:
    notes = [f"near the limit: with {found.near}"] if found.is_near(vram, cards) else []
    if cards > 1:
        notes.append("split over them")
    return ", ".join(notes) or "fits"


def held(found: Estimate, ask: GpuAsk) -> list[tuple[str, int, bool]]:
    """(class, cards, whether they hold it) of everything that the GPU asked for may be."""
    return [
        (gpu.name, choice.count, found.fits(gpu.vram_gb, choice.count))
        for choice in ask.choices
        for gpu in choice.classes()
    ]


def verdict(found: Estimate, ask: GpuAsk) -> Iterator[str]:
    """Whether the asked cards hold it, and what to do when they do not."""
    for name, count, fits in held(found, ask):
        cards = f"{count} x {name}"
        if fits:
            yield f"{cards} holds it"
        elif found.model.method == "inference":
            yield f"{cards} is too small for it"
        else:
            yield f"{cards}: fits only with ZeRO-3 or offload to main memory, which is slower; {bigger(found)}"


def bigger(found: Estimate) -> str:
    """The smallest machine that is enough without tricks."""
    from jobspecs.gpus import GPU_CLASSES

    options = [(gpu.vram_gb * cards, cards, gpu.name) for gpu in GPU_CLASSES if (cards := found.cards(gpu))]
    if not options:
        return "no machine of 8 cards holds it"
    _, cards, name = min(options)
    return f"{cards} x {name} holds it" if cards > 1 else f"one {name} holds it"


def instead(found: Estimate) -> Iterator[str]:
    """Ways that need less, each with its card."""
    from jobspecs.memory import smaller

    for other in smaller(found.model):
        tier = f"one card of {other.tier} GB" if other.tier else "several cards"
        yield f"instead   {title(other)}: {gb(other.need)}, {tier}"


def as_json(found: Estimate, ask: GpuAsk | None) -> dict[str, Any]:
    """The estimate as documented in the reference of the JSON output."""
    from jobspecs.gpus import GPU_CLASSES
    from jobspecs.memory import smaller

    model = found.model
    return {
        "params": model.params,
        "method": model.method,
        "dtype": model.dtype,
        "parts": [{"part": part.name, "gb": round(part.gb, 3), "per_card": part.per_card} for part in found.parts],
        "low_gb": round(found.low, 3),
        "high_gb": round(found.high, 3),
        "need_gb": round(found.need, 3),
        "more_per_card_gb": round(found.more_per_card, 3),
        "card_gb": found.tier,
        "assumed": list(found.assumed),
        "classes": [
            {"gpu": gpu.name, "vram_gb": gpu.vram_gb, "cards": (cards := found.cards(gpu)),
             "near_limit": cards is not None and found.is_near(gpu.vram_gb, cards)}
            for gpu in GPU_CLASSES
        ],
        "asked": [{"gpu": name, "count": count, "fits": fits} for name, count, fits in held(found, ask)] if ask else [],
        "instead": [
            {"method": each.model.method, "dtype": each.model.dtype, "need_gb": round(each.need, 3),
             "card_gb": each.tier}
            for each in smaller(model)
        ],
    }  # fmt: skip


COMMANDS = {"estimate": Command(_add, run)}

"""How much GPU memory a model needs: an estimate from its size, in the unit of the cards.

Rules: pure. One GB here is the GB on a card's box, which holds a GiB. What grows with parameters counts 10^9 bytes as
one (7 % too much, the safe side), what grows with tokens counts 2^30. Everything that was not given and had to be
assumed is said in `assumed`. An estimate finds the card that can hold the job; only a run's own peak proves it.

Sources: mixed precision with AdamW keeps 2 + 2 + 8 + 4 bytes a parameter (ZeRO, arXiv:1910.02054), and 16 to 20 with
activations in practice; a layer keeps 34 bytes a token and hidden unit for its backward pass (arXiv:2205.05198, without
the part that flash attention never stores).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from jobspecs.gpu_table import GPU_CLASSES, GpuClass
from jobspecs.problems import Refusal, shown

Method = Literal["inference", "lora", "qlora", "full"]
METHODS: tuple[Method, ...] = ("inference", "lora", "qlora", "full")
BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "int8": 1.0, "int4": 0.5}
GB = 2**30

OVERHEAD_GB = 3.0  # of a framework, its kernels and its allocator: 2 to 4 in practice
HEADROOM = 1.25  # 20 % of the card stay free: a long request is sized by the peak, not by the mean
FULL_LOW, FULL_HIGH = 16, 20  # bytes a parameter: the training state alone, and with activations and buffers
ADAPTER_SHARE = 0.01  # of the parameters are trained by LoRA at usual ranks
ADAPTER_BYTES = 16  # each with its gradient, optimizer state and fp32 copy
ACTIVATION_BYTES = 34  # a token, layer and hidden unit, in 16 bits
CHECKPOINTED_BYTES = 2  # with gradient checkpointing only a layer's input stays
CARD_COUNTS = (1, 2, 4, 8)  # what one machine holds
SEQ_LEN, CONTEXT = 2048, 4096  # where none was given

# Parameters in 10^9 -> layers, hidden size, attention heads: published decoders, for what was not given.
SHAPES = (
    (0.125, 12, 768, 12), (0.35, 24, 1024, 16), (1.3, 24, 2048, 16), (2.7, 32, 2560, 32), (7.0, 32, 4096, 32),
    (13.0, 40, 5120, 40), (33.0, 60, 6656, 52), (70.0, 80, 8192, 64), (175.0, 96, 12288, 96),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Model:
    """What is known of a model and its use. `params` is a number; 0 means not given.

    `batch` is sequences per step and card, and requests at a time for inference; `seq_len` is tokens of each, and the
    context for inference.
    """

    params: float
    method: Method = "inference"
    dtype: str = "bf16"
    batch: int = 0
    seq_len: int = 0
    layers: int = 0
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0


@dataclass(frozen=True, slots=True)
class Part:
    """One share of the memory, in GB of a card. `per_card`: every further card needs it again."""

    name: str
    gb: float
    per_card: bool = False


@dataclass(frozen=True, slots=True)
class Estimate:
    """The memory of one model and use, in GB of a card.

    `parts` add up to `high`; `low` is what it comes to with the savings that `near` names. A card is big enough from
    `need` on; between `need` and `comfortable` only with those savings.
    """

    model: Model
    parts: tuple[Part, ...]
    low: float
    high: float
    need: float
    comfortable: float
    near: str = ""
    assumed: tuple[str, ...] = ()

    @property
    def more_per_card(self) -> float:
        """GB that every further card adds to the need: what each card holds for itself, headroom included."""
        scale = HEADROOM if self.model.method == "inference" else 1.0
        return scale * sum(part.gb for part in self.parts if part.per_card)

    def need_of(self, cards: int) -> float:
        """GB that `cards` cards together must have."""
        return self.need + (cards - 1) * self.more_per_card

    def fits(self, vram_gb: float, cards: int = 1) -> bool:
        """Whether `cards` cards of `vram_gb` each can hold it, split over them."""
        return vram_gb * cards >= self.need_of(cards)

    def is_near(self, vram_gb: float, cards: int = 1) -> bool:
        """Whether it fits only with savings."""
        return self.fits(vram_gb, cards) and vram_gb * cards < self.comfortable + (cards - 1) * self.more_per_card

    def cards(self, gpu: GpuClass) -> int | None:
        """The fewest cards of a class that one machine may hold and that are enough; None when 8 are not."""
        return next((count for count in CARD_COUNTS if self.fits(gpu.vram_gb, count)), None)

    @property
    def tier(self) -> int | None:
        """The smallest memory of one card that is enough, in GB; None when no card is."""
        return next((size for size in sorted({gpu.vram_gb for gpu in GPU_CLASSES}) if self.fits(size)), None)


def parse_params(text: str) -> float:
    """`7B`, `7b`, `350M`, `1.3B` as a number of parameters. Raises Refusal."""
    said = text.strip().upper()
    factor = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(said[-1:])
    try:
        params = float(said[:-1]) * factor if factor and said[:1].isdigit() else 0.0
    except ValueError:
        params = 0.0
    if not 0 < params < 1e15:
        raise Refusal(f"{shown(text)} is not a number of parameters", "write it like 7B or 350M")
    return params


def estimate(model: Model) -> Estimate:
    """The memory of one model and use. Raises Refusal for a dtype that does not go with the method."""
    if model.dtype not in BYTES:
        raise Refusal(f"{shown(model.dtype)} is no dtype", "one of " + ", ".join(BYTES))
    if model.method == "full" and BYTES[model.dtype] < 2:
        raise Refusal(f"a full fine-tune has no {model.dtype} weights", "take qlora, or bf16")
    heads = _shape(model)[2]
    if model.kv_heads > heads:
        raise Refusal(f"{model.kv_heads} key-value heads are more than {heads} heads", "give both")
    if model.method == "inference":
        return _inference(model)
    return _full(model) if model.method == "full" else _adapter(model)


def smaller(model: Model) -> tuple[Estimate, ...]:
    """What the same model needs in ways that need less: other methods for training, fewer bits for inference."""
    if model.method == "inference":
        fewer = (dtype for dtype in ("int8", "int4") if BYTES[dtype] < BYTES[model.dtype])
        return tuple(estimate(replace(model, dtype=dtype)) for dtype in fewer)
    methods: dict[str, tuple[Method, ...]] = {"full": ("lora", "qlora"), "lora": ("qlora",)}
    return tuple(estimate(replace(model, method=method)) for method in methods.get(model.method, ()))


def kv_gb_per_token(model: Model) -> float:
    """The cache of one token: a key and a value for each layer and hidden unit, less where heads share them."""
    layers, hidden, heads, _ = _shape(model)
    shared = (model.kv_heads or heads) / heads
    return 2 * layers * hidden * _cache_bytes(model) * shared / GB


def _cache_bytes(model: Model) -> float:
    return max(2.0, BYTES[model.dtype])  # the cache stays in 16 bits where weights are quantised


def _inference(model: Model) -> Estimate:
    assumed = list(_shape(model)[3])
    tokens, requests = model.seq_len or CONTEXT, model.batch or 1
    if not model.seq_len:
        assumed.append(f"a context of {CONTEXT} tokens")
    if not model.batch:
        assumed.append("1 request at a time")
    if not model.kv_heads:
        assumed.append("no grouped key-value heads")
    parts = (
        Part("weights", model.params * BYTES[model.dtype] / 1e9),
        Part("kv cache", kv_gb_per_token(model) * tokens * requests),
        Part("overhead", OVERHEAD_GB, per_card=True),
    )
    total = sum(part.gb for part in parts)
    return Estimate(model, parts, total, total, total * HEADROOM, total * HEADROOM, assumed=tuple(assumed))


def _adapter(model: Model) -> Estimate:
    """LoRA trains a little beside frozen weights; QLoRA keeps those in 4 bits."""
    bits = min(BYTES["int4"], BYTES[model.dtype]) if model.method == "qlora" else BYTES[model.dtype]
    activations, saved, assumed = _activations(model)
    parts = (
        Part("weights", model.params * bits / 1e9),
        Part("adapters", model.params * ADAPTER_SHARE * ADAPTER_BYTES / 1e9),
        Part("activations", activations, per_card=True),
        Part("overhead", OVERHEAD_GB, per_card=True),
    )
    high = sum(part.gb for part in parts)
    low = high - activations + saved
    return Estimate(model, parts, low, high, low, high, "gradient checkpointing", assumed)


def _full(model: Model) -> Estimate:
    """Mixed precision with AdamW, 16 bytes a parameter; activations and buffers bring it to 20, or more when the batch
    and the sequences that were given need more."""
    one = model.params / 1e9
    master = 4 if BYTES[model.dtype] == 2 else 0  # fp32 weights are their own master copy
    weight = BYTES[model.dtype]
    states = [
        Part("weights", one * weight),
        Part("gradients", one * weight),
        Part("optimizer", one * 8),
        Part("master weights", one * master),
    ]
    allowance = one * (FULL_HIGH - FULL_LOW)
    assumed: tuple[str, ...] = ()
    if model.batch or model.seq_len:
        activations, _, assumed = _activations(model)
        states.append(Part("activations", activations, per_card=True))
        states.append(Part("buffers", max(0.0, allowance - activations)))
    else:
        states.append(Part("activations", allowance))
        assumed = ("activations and buffers of 4 bytes a parameter, for want of batch and seq_len",)
    high = sum(part.gb for part in states)
    return Estimate(model, tuple(states), one * FULL_LOW, high, high, high, "gradient checkpointing", assumed)


def _activations(model: Model) -> tuple[float, float, tuple[str, ...]]:
    """GB of activations, and with gradient checkpointing, of one step on one card; linear in batch and seq_len."""
    layers, hidden, _, assumed = _shape(model)
    tokens = (model.batch or 1) * (model.seq_len or SEQ_LEN)
    if not model.batch:
        assumed += ("a batch of 1",)
    if not model.seq_len:
        assumed += (f"sequences of {SEQ_LEN} tokens",)
    width = max(2.0, BYTES[model.dtype]) / 2
    units = tokens * layers * hidden * width / GB
    return units * ACTIVATION_BYTES, units * CHECKPOINTED_BYTES, assumed


def _shape(model: Model) -> tuple[int, int, int, tuple[str, ...]]:
    """Layers, hidden size and heads, those of the nearest published decoder where not given, and what was assumed."""
    _, layers, hidden, heads = min(SHAPES, key=lambda row: abs(math.log(row[0] * 1e9 / model.params)))
    given = (model.layers, model.hidden, model.heads)
    found = tuple(own or usual for own, usual in zip(given, (layers, hidden, heads), strict=True))
    missing = [f"{value} {name}" for name, own, value in zip(("layers", "hidden", "heads"), given, found, strict=True)
               if not own]  # fmt: skip
    return found[0], found[1], found[2], (", ".join(missing),) if missing else ()

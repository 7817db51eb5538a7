"""What the names of checkpoints and of their files say: steps as numbers, temporary names, markers, the files that
belong to one. Pure: the controller reads manifests by the same rules.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TEMPORARY = re.compile(
    r"(\..*|(tmp|temp)[-_.].*|.*[-_.](tmp|temp|part|partial|incomplete|inprogress|in_progress|writing|saving)([-_.]?\d+)?"
    r"|.*\.orbax-checkpoint-tmp.*|.*\.tempstate\d+|.*~)\Z",
    re.IGNORECASE,
)
NUMBER = re.compile(r"\d+")
# What programs call the one checkpoint that they write again and again; other names without a number are no checkpoints
# unless the spec's pattern asks for them, or a config.json beside the weights would count as one.
ROLLING = re.compile(r"(ckpt|checkpoint|last|latest)(-v\d+)?(\.[A-Za-z0-9.]+)?\Z", re.IGNORECASE)
NO_STEP = -1  # the controller numbers these by arrival
ANY = r".*\Z"
# What trainers put beside their checkpoints, with numbers in the names that are no steps
BESIDE = re.compile(
    r"(events\.out\.tfevents\..*|rng_state_\d+\.pth|.*-of-\d+(\..*)?|.*\.(log|jsonl|csv|md|png|jpe?g|svg|html|py|sh|lock"
    r"|ya?ml|index))\Z",
    re.IGNORECASE,
)
# `X.done` beside `X`: the program's own word that X is whole
MARKER_FILE = re.compile(r"(.+)[._-](done|complete|completed|success|_success|ok|finished)\Z", re.IGNORECASE)
# The same inside of a folder
MARKERS = frozenset(
    {"COMPLETE", "COMPLETED", "DONE", "SUCCESS", "_COMPLETE", "_DONE", "_SUCCESS", ".COMPLETE", ".DONE", ".SUCCESS",
     "COMMIT_SUCCESS.TXT"}
)  # fmt: skip
# A number is a step by its label; one of an epoch counts before it, since steps may begin anew in every epoch
STEP = re.compile(r"(?:^|[^a-z])(?:global[-_.]?)?(?:steps?|iter(?:ation)?s?|updates?|batch|it)[-_.=]?(\d+)", re.I)
EPOCH = re.compile(r"(?:^|[^a-z])(?:epochs?|ep)[-_.=]?(\d+)", re.IGNORECASE)
LIGHTNING = re.compile(r"epoch=\d+-step=(\d+)")  # its step goes on over epochs
SAVED = re.compile(
    r"(?:^|[^a-z])(?:checkpoint|ckpt|save|model|state|weights?)[-_.=]?(\d+)(?![\d.]*[a-z])", re.IGNORECASE
)
DECIMAL = re.compile(r"\d+\.\d+|\d+e-\d+")  # a loss, a learning rate
ENDING = re.compile(r"(-v\d+)?((\.[A-Za-z][A-Za-z0-9]*)+)?\Z")  # Lightning's version of a repeated name, and `.h5`
EPOCH_STEPS = 10**9  # more steps than an epoch has
HASH = re.compile(r"(?<![0-9a-z])[0-9a-f]{16,}(?![0-9a-z])")


def step_pattern(pattern: str) -> re.Pattern[str]:
    """`step_{n}.npz` -> a regex whose group 1 is the step; `*` and `?` as in a shell. Empty: any name."""
    parts = {"{n}": r"(\d+)", "*": ".*", "?": "."}
    pieces = re.split(r"(\{n\}|\*|\?)", pattern or "*")
    return re.compile("".join(parts.get(piece, re.escape(piece)) for piece in pieces) + r"\Z")


def step_of(name: str, pattern: re.Pattern[str]) -> int | None:
    """The step in the name, or None where the name is not a checkpoint's."""
    match = pattern.match(name)
    if not match or TEMPORARY.match(name):
        return None
    if pattern.groups:
        return int(match.group(1))
    if pattern.pattern == ANY and BESIDE.match(name):
        return None
    if ROLLING.match(name):
        return NO_STEP
    step = numbered(name)
    if step is not None:
        return step
    return NO_STEP if pattern.pattern != ANY else None


def numbered(name: str) -> int | None:
    """The step that a name carries: labelled, else its last number. Never a part of a decimal, a version, an ending."""
    lightning = LIGHTNING.search(name)
    if lightning:
        return int(lightning.group(1))
    steps, epochs = STEP.findall(name), EPOCH.findall(name)
    if steps:
        return int(steps[-1]) + (EPOCH_STEPS * int(epochs[-1]) if epochs else 0)
    if epochs:
        return int(epochs[-1])
    saved = SAVED.search(name)
    if saved:
        return int(saved.group(1))
    stem = ENDING.sub("", name) or name
    numbers = NUMBER.findall(DECIMAL.sub("", stem)) or NUMBER.findall(stem)
    return int(numbers[-1]) if numbers else None


def marked(name: str, names: Iterable[str]) -> str:
    """The entry that the file `name` marks as complete (`X.done` beside `X` or `X.pt`); "" where it is no marker."""
    match = MARKER_FILE.match(name)
    if not match:
        return ""
    stem = match.group(1)
    found = [other for other in names if other != name and (other == stem or other.startswith(stem + "."))]
    found = [other for other in found if not MARKER_FILE.match(other) and not TEMPORARY.match(other)]
    return min(found, key=len, default="")


def shape_of(name: str) -> str:
    """A name with its numbers as `#` and its hashes as `@`: what siblings have in common."""
    return NUMBER.sub("#", HASH.sub("@", name))


def shapes(paths: Iterable[str]) -> Counter[str]:
    """How many files of each shape. Of those named by a hash the number is the format's own affair."""
    found = Counter(shape_of(path) for path in paths)
    return Counter({shape: 1 if "@" in shape else count for shape, count in found.items()})


def lacks(earlier: Counter[str], later: Counter[str]) -> str:
    """What `later` has not, or has fewer of, than its earlier sibling; "" where nothing is missing."""
    for shape, count in sorted(earlier.items()):
        if later[shape] < count:
            return shape if not later[shape] else "%d of %d %s" % (count - later[shape], count, shape)
    return ""

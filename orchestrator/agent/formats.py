"""Whether a checkpoint is structurally whole, as far as its format tells. The controller asks the same of its copy.

Rules
- "" or one sentence that says what is missing. A format that says nothing of its own wholeness is taken as whole: it
  is for the scan to see that nobody writes it.
"""

from __future__ import annotations

import json
import os
import re
import stat
from typing import Any

from orchestrator.agent.names import MARKERS, TEMPORARY
from orchestrator.agent.pickles import PICKLE_MAX, PlainValues, plain_values, saved_values, stated

JSON_MAX = 64 << 20
PICKLED = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".bin")
ZIPPED = (".npz", ".zip", ".keras")
OF_THE_TRAINER = re.compile(r"(training_args\.bin|optimizer\.pt|scheduler\.pt|rng_state(_\d+)?\.pth)\Z")
TRAINER_FOLDER = re.compile(r"checkpoint-\d+\Z")
PART = re.compile(r"(.*?)[-_.]?(\d+)-of-(\d+)(.*)\Z")
RANK = re.compile(r"(?:^|_)rank_(\d+)")
DEEPSPEED = re.compile(r"(.*)_(model|optim)_states\.pt\Z")
INDEXED = re.compile(r"(pytorch_|diffusion_pytorch_|adapter_)?model")
WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
STATES = re.compile(r"(optimizer|scheduler|rng_state|scaler|training_args)")
ZERO = re.compile(r"(bf16_|fp16_)?zero_")
OLD_TORCH = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # torch's magic number as a pickle
ORBAX_JSON = ("_METADATA", "_CHECKPOINT_METADATA")
OCDBT_MAGIC = b"\x0c\xdb\x3a\x2a"


def flaw_of(path: str, name: str = "") -> str:
    """What is missing of the file or folder at `path`; "" when nothing is. `name`: its own, where the path's is not."""
    try:
        if not os.path.isdir(path):
            return file_flaw(path)
        return folder_flaw(path, name or os.path.basename(path))
    except Exception as error:  # parsers of damaged bytes raise whatever they like: it is not whole
        return "it cannot be read: %s" % (str(error) or type(error).__name__)


def files_below(path: str) -> list[str]:
    """Relative paths of all files and links below a folder, sorted; the single file as ""."""
    if not os.path.isdir(path):
        return [""]
    return sorted(os.path.relpath(os.path.join(top, name), path) for top, _, names in os.walk(path) for name in names)


# --- one file ---


def file_flaw(path: str) -> str:
    info = os.stat(path)
    if not stat.S_ISREG(info.st_mode):
        return "it is no file"
    size, name = info.st_size, os.path.basename(path)
    if not size:
        return "it is empty"
    with open(path, "rb") as file:
        head = file.read(8)
    lower = name.lower()
    if lower.endswith(".safetensors"):
        return safetensors_flaw(path, size)
    if head.startswith(b"PK") or lower.endswith(ZIPPED):
        return zip_flaw(path)
    if b"PK\x03\x04".startswith(head):
        return "its first bytes are cut off"
    if lower.endswith(PICKLED) and head[:1] == b"\x80" and head[1:2] in (b"", b"\x02", b"\x03", b"\x04", b"\x05"):
        return pickle_flaw(path, size)
    if (lower.endswith(".json") or name in ORBAX_JSON) and size <= JSON_MAX:
        with open(path, "rb") as file:
            json.loads(file.read())
    if name == "manifest.ocdbt" and (head[:4] != OCDBT_MAGIC or ocdbt_length(path) != size):
        return "the OCDBT manifest is cut off"
    return ""


def safetensors_flaw(path: str, size: int) -> str:
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, 100 << 20):
            return "the safetensors header is cut off"
        header = json.loads(file.read(length))
    ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
    wanted = 8 + length + max(ends, default=0)
    return "" if size == wanted else "it has %d of %d bytes" % (size, wanted)


def zip_flaw(path: str) -> str:
    """The directory is at the end of an archive, and its first member at the very beginning: a cut file that ends with
    an archive inside of it has another beginning."""
    import zipfile

    with zipfile.ZipFile(path) as archive:
        members = archive.infolist()
        if members and min(member.header_offset for member in members) != 0:
            return "the archive is cut off"
    return ""


def pickle_flaw(path: str, size: int) -> str:
    """A pickle ends with its STOP; behind several small ones, torch before 1.6 wrote the bytes of its storages."""
    import pickletools

    with open(path, "rb") as file:
        if file.read(len(OLD_TORCH)) == OLD_TORCH:
            return old_torch_flaw(file, size)
        file.seek(0)
        if size <= PICKLE_MAX:
            for _ in pickletools.genops(file):  # raises where it ends before its STOP
                pass
    return ""


def old_torch_flaw(file: Any, size: int) -> str:
    """Magic number, protocol, system, the object, the keys of its storages; then of each its length and its bytes."""
    storages: dict[str, int] = {}
    for _ in range(3):
        reader = PlainValues(file)
        reader.load()
        storages.update(reader.storages)
    keys = PlainValues(file).load()
    for key in keys:
        if key not in storages:
            return ""  # of a type that we do not know
        head = file.read(8)
        count = int.from_bytes(head, "little")
        if len(head) < 8:
            return "it lacks a storage"
        file.seek(count * storages[key], os.SEEK_CUR)
        if file.tell() > size:
            return "it ends at %d of at least %d bytes" % (size, file.tell())
    return "" if file.tell() <= size else "it is cut off"


def ocdbt_length(path: str) -> int:
    with open(path, "rb") as file:
        return int.from_bytes(file.read(12)[4:], "little")


# --- folders ---


def folder_flaw(path: str, name: str) -> str:
    files = files_below(path)
    if not files:
        return "it is empty"
    done = is_marked(path)
    for each in files:
        if not done and any(TEMPORARY.match(part.lstrip(".")) for part in each.split(os.sep)):
            return "%s is still being written" % each
        full = os.path.join(path, each)
        if os.path.islink(full) and not os.path.exists(full):
            return "%s leads nowhere" % each
        flaw = "" if os.path.basename(each).upper() in MARKERS else file_flaw_within(full)
        if flaw:
            return "%s: %s" % (each, flaw)
    folders: dict[str, list[str]] = {}
    for each in files:
        folders.setdefault(os.path.dirname(each), []).append(os.path.basename(each))
    for folder, names in sorted(folders.items()):
        flaw = set_flaw(os.path.join(path, folder) if folder else path, names)
        if flaw:
            return flaw
    return trainer_flaw(path, name, folders.get("", [])) or orbax_flaw(path, folders)


def is_marked(path: str) -> bool:
    """Whether the program has said that the folder is whole."""
    try:
        return any(name.upper() in MARKERS for name in os.listdir(path))
    except OSError:
        return False


def file_flaw_within(path: str) -> str:
    """Empty files are ordinary in folders (`__init__.py`, `0` of an array), but not where bytes must be."""
    if os.path.getsize(path) == 0:
        weights = path.lower().endswith((*PICKLED, *ZIPPED, ".safetensors", ".distcp", ".json", ".ocdbt"))
        return "it is empty" if weights or os.path.basename(path) in (".metadata", "latest", *ORBAX_JSON) else ""
    try:
        return file_flaw(path)
    except Exception as error:
        return str(error) or type(error).__name__


def set_flaw(folder: str, names: list[str]) -> str:
    """What files that belong together say of each other."""
    return (
        index_flaw(folder, names) or part_flaw(names) or distcp_flaw(folder, names) or deepspeed_flaw(folder, names)
    )  # fmt: skip


def index_flaw(folder: str, names: list[str]) -> str:
    """`model.safetensors.index.json` names the shards that there must be."""
    for index in names:
        if not index.endswith(".index.json"):
            continue
        with open(os.path.join(folder, index), "rb") as file:
            shards = json.loads(file.read()).get("weight_map", {})
        missing = sorted(set(shards.values()) - set(names)) if isinstance(shards, dict) else []
        if missing:
            return "it lacks %s, which %s names" % (missing[0], index)
    return ""


def part_flaw(names: list[str]) -> str:
    """`model-00002-of-00003.safetensors`: three of them, and the index that is written after them."""
    groups: dict[tuple[str, str, str], set[str]] = {}
    for name in names:
        match = PART.match(name)
        if match:
            groups.setdefault((match.group(1), match.group(3), match.group(4)), set()).add(match.group(2))
    for (stem, of, ending), there in sorted(groups.items()):
        if len(there) < int(of):
            return "it has %d of %d %s%s" % (len(there), int(of), stem, ending)
        index = "%s%s.index.json" % (stem, ending)
        indexed = any(".index." in name and name.endswith(".json") for name in names)
        if INDEXED.match(stem) and ending in (".safetensors", ".bin") and int(of) > 1 and not indexed:
            return "it lacks %s" % index
    return ""


def distcp_flaw(folder: str, names: list[str]) -> str:
    """torch.distributed writes `.metadata` last; it names every shard and how far each must reach."""
    shards = {name for name in names if name.endswith(".distcp")}
    if not shards and ".metadata" not in names:
        return ""
    if ".metadata" not in names:
        return "it lacks .metadata, which is written last"
    with open(os.path.join(folder, ".metadata"), "rb") as file:
        data = file.read(PICKLE_MAX + 1)
    named = {found.decode() for found in re.findall(rb"[A-Za-z0-9_.-]+\.distcp", data)}
    if not shards and not named:
        return ""  # another program's file of that name
    missing = sorted(named - shards)
    if missing:
        return "it lacks %s, which .metadata names" % missing[0]
    if len(data) > PICKLE_MAX:
        return ""
    for place in stated(plain_values(data), ("relative_path", "offset", "length")):
        wanted = int(place["offset"]) + int(place["length"])
        there = os.path.getsize(os.path.join(folder, str(place["relative_path"])))
        if there < wanted:
            return "%s has %d of %d bytes" % (place["relative_path"], there, wanted)
    return ""


def deepspeed_flaw(folder: str, names: list[str]) -> str:
    """One file of every rank; how many ranks there were stands in the model's own state."""
    ranks: dict[str, set[str]] = {}
    for name in names:
        match = DEEPSPEED.match(name)
        if match:
            found = RANK.findall(match.group(1))
            family = "%s_%s" % (RANK.sub("_rank_#", match.group(1)), match.group(2))
            ranks.setdefault(family, set()).add(" ".join(found))
    for family, there in sorted(ranks.items()):
        columns = list(zip(*(key.split() for key in there)))
        full = 1
        for column in columns:
            full *= max(int(number) for number in column) + 1
        if columns and len(there) < full:
            return "it has %d of %d ranks of %s_states.pt" % (len(there), full, family)
    models = sorted(name for name in names if name.endswith("model_states.pt"))
    if ranks and not models:
        return "it lacks the *_model_states.pt"
    for name in [name for name in models if not name.startswith("layer")][:1]:
        known = saved_values(os.path.join(folder, name), ("dp_world_size", "mp_world_size", "optimizer"))
        sizes = [known.get("dp_world_size"), known.get("mp_world_size", 1)]
        wanted = sizes[0] * sizes[1] if all(isinstance(each, int) for each in sizes) else 0
        for family, there in ranks.items():
            if ZERO.match(family) and len(there) < wanted:
                return "it has %d of %d ranks of %s_states.pt" % (len(there), wanted, family)
        if "optimizer" in known and known["optimizer"] is None and not any("optim" in family for family in ranks):
            return "it lacks the *_optim_states.pt"  # ZeRO keeps them apart
    return ""


def trainer_flaw(path: str, name: str, names: list[str]) -> str:
    """The Trainer of Hugging Face writes weights, then optimizer and scheduler, then trainer_state.json."""
    if not TRAINER_FOLDER.match(name):
        return ""
    # Others use the same name: Accelerate (optimizer.bin, random_states_0.pkl), a plain save_pretrained
    if any(OF_THE_TRAINER.match(each) for each in names) and "trainer_state.json" not in names:
        return "it lacks trainer_state.json, which the Trainer writes last"
    if "optimizer.pt" in names and "scheduler.pt" not in names:
        return "it lacks scheduler.pt, which is written after optimizer.pt"
    weights = [each for each in names if each.endswith(WEIGHTS) and not STATES.match(each)]
    inner = any(os.path.isdir(os.path.join(path, each)) for each in os.listdir(path))
    if "trainer_state.json" in names and not weights and not inner:
        return "it has no weights"
    return ""


def orbax_flaw(path: str, folders: dict[str, list[str]]) -> str:
    """A step's folder of Orbax; where renaming is not atomic, the commit's time is written last."""
    if "_CHECKPOINT_METADATA" in folders.get("", ()):
        with open(os.path.join(path, "_CHECKPOINT_METADATA"), "rb") as file:
            found = json.loads(file.read())
        if isinstance(found, dict) and found.get("commit_timestamp_nsecs", 1) is None:
            return "Orbax has not committed it"
    for folder, names in sorted(folders.items()):
        inner = {each[len(folder) :].lstrip(os.sep).split(os.sep)[0] for each in folders if within(each, folder)}
        kept = "d" in inner or any(each.startswith("ocdbt.process_") for each in inner)
        if "_METADATA" in names and kept and "manifest.ocdbt" not in names:
            return "%s lacks manifest.ocdbt, into which Orbax merges last" % (folder or "it")
        merged = "manifest.ocdbt" in names and not os.path.basename(folder).startswith("ocdbt.process_")
        if merged and "_CHECKPOINT_METADATA" in folders.get("", ()) and "_METADATA" not in names:
            return "%s lacks _METADATA" % (folder or "it")
    return ""


def within(path: str, folder: str) -> bool:
    return bool(path) and (not folder or path.startswith(folder + os.sep))

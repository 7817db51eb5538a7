"""Checkpoints of every known format, written by hand: no framework is installed where the tests run."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

OLD_MAGIC = 0x1950A86A20F9469CFC6C


class _Named:
    """Pickles as an instance of a class that is not there."""

    def __init__(self, **state: Any) -> None:
        self.__dict__.update(state)


def named_pickle(value: Any, module: str, name: str) -> bytes:
    """`value` pickled, with every `_Named` as an instance of module.name."""
    data = pickle.dumps(value, protocol=2)
    old = f"c{_Named.__module__}\n_Named\n".encode()
    return data.replace(old, f"c{module}\n{name}\n".encode())


def zip_bytes(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return made.getvalue()


def torch_zip(value: Any = None, storage: bytes = b"weights" * 40) -> bytes:
    """What `torch.save` writes since 1.6."""
    shown = pickle.dumps({"step": 1} if value is None else value, protocol=2)
    members = {"archive/data.pkl": shown, "archive/byteorder": b"little", "archive/data/0": storage}
    return zip_bytes({**members, "archive/version": b"3\n"})


def torch_of_old(numbers: int = 20) -> bytes:
    """What `torch.save` wrote before 1.6: five pickles, then the storages."""
    entry = ("storage", None, "94", "cpu", numbers, None)
    shown = pickle.dumps(entry, protocol=2).replace(b"N", b"ctorch\nFloatStorage\n", 1)[:-1] + b"Q."
    head = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19." + pickle.dumps(1001, protocol=2)
    head += pickle.dumps({"little_endian": True}, protocol=2)
    return head + shown + pickle.dumps(["94"], protocol=2) + struct.pack("<q", numbers) + b"\1" * (4 * numbers)


def safetensors(tensors: int = 3, each: int = 24) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for at in range(tensors):
        header[f"w{at}"] = {"dtype": "F32", "shape": [each // 4], "data_offsets": [at * each, at * each + each]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"\7" * (tensors * each)


def put(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def as_json(value: Any) -> bytes:
    return json.dumps(value).encode()


def trainer(shards: int = 1, step: int = 500) -> dict[str, bytes]:
    """A folder of the Trainer of Hugging Face."""
    files = {"config.json": as_json({"model_type": "llama"}), "training_args.bin": torch_zip()}
    if shards == 1:
        files["model.safetensors"] = safetensors()
    else:
        names = [f"model-{at:05d}-of-{shards:05d}.safetensors" for at in range(1, shards + 1)]
        files.update(dict.fromkeys(names, safetensors()))
        files["model.safetensors.index.json"] = as_json({"weight_map": {f"w{at}": n for at, n in enumerate(names)}})
    files["optimizer.pt"] = torch_zip()
    files["scheduler.pt"] = torch_zip()
    files["rng_state.pth"] = torch_zip()
    files["trainer_state.json"] = as_json({"global_step": step, "best_model_checkpoint": "out/checkpoint-300"})
    return files


def deepspeed(ranks: int = 4, stage: int = 3) -> dict[str, bytes]:
    """What is in `global_stepN/`."""
    state = torch_zip({"dp_world_size": ranks, "mp_world_size": 1, "optimizer": None, "global_steps": 100})
    if stage == 3:
        files = {f"zero_pp_rank_{at}_mp_rank_00_model_states.pt": state for at in range(ranks)}
    else:
        files = {"mp_rank_00_model_states.pt": state}
    return files | {f"bf16_zero_pp_rank_{at}_mp_rank_00_optim_states.pt": torch_zip() for at in range(ranks)}


def distributed(ranks: int = 2, pieces: int = 2, each: int = 40) -> dict[str, bytes]:
    """torch.distributed.checkpoint: shards, and the metadata that is written last."""
    places = {
        f"{rank}.{piece}": _Named(relative_path=f"__{rank}_0.distcp", offset=piece * each, length=each)
        for rank in range(ranks)
        for piece in range(pieces)
    }
    metadata = named_pickle({"storage_data": places}, "torch.distributed.checkpoint.filesystem", "_StorageInfo")
    return {f"__{rank}_0.distcp": b"\3" * (pieces * each) for rank in range(ranks)} | {".metadata": metadata}


def ocdbt(size: int = 60) -> bytes:
    return b"\x0c\xdb\x3a\x2a" + (12 + size).to_bytes(8, "little") + b"\5" * size


def orbax(digest: str = "93394f1b13fb5cf346086cebb8eae8bf") -> dict[str, bytes]:
    """A step's folder of Orbax's CheckpointManager."""
    return {
        "_CHECKPOINT_METADATA": as_json({"init_timestamp_nsecs": 1, "commit_timestamp_nsecs": 2}),
        "default/_METADATA": as_json({"tree_metadata": {}}),
        "default/_sharding": as_json({}),
        "default/manifest.ocdbt": ocdbt(),
        f"default/d/{digest}": b"\6" * 80,
        "default/ocdbt.process_0/manifest.ocdbt": ocdbt(30),
        f"default/ocdbt.process_0/d/{digest[::-1]}": b"\6" * 90,
    }


def lightning(best: str = "/ckpt/epoch=2-step=300.ckpt") -> bytes:
    callbacks = {"ModelCheckpoint{'monitor': 'val'}": {"best_model_path": best, "best_model_score": 0.25}}
    return torch_zip({"epoch": 4, "global_step": 500, "callbacks": callbacks})


#: Formats of one file, every proper prefix of which is not whole.
FILES: dict[str, Callable[[], bytes]] = {
    "step_5.pt": torch_zip,
    "epoch=1-step=5.ckpt": lightning,
    "step_5.npz": lambda: zip_bytes({"w.npy": b"\x93NUMPY" + b"1" * 90}),
    "nested_5.pt": lambda: torch_zip(storage=zip_bytes({"inner": b"i" * 50}) + b"behind"),
    "old_5.pt": torch_of_old,
    "plain_5.pkl": lambda: pickle.dumps({"step": 5, "w": [0.25] * 20, "text": "ends. with. dots."}, protocol=4),
    "step_5.safetensors": safetensors,
}
#: Formats of folders, and their names.
FOLDERS: dict[str, Callable[[], dict[str, bytes]]] = {
    "checkpoint-500": trainer,
    "checkpoint-501": lambda: trainer(shards=3),
    "global_step100": deepspeed,
    "global_step101": lambda: deepspeed(stage=2),
    "step_100": distributed,
    "100": orbax,
}

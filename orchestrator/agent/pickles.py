"""Plain values out of pickles and of what torch saved: nothing that they name is imported or called."""

from __future__ import annotations

import io
import pickle
from typing import Any

PICKLE_MAX = 8 << 20  # metadata of sharded checkpoints is far below; a larger one is not looked into
STORAGE_BYTES = {
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexFloatStorage": 8,
    "ComplexDoubleStorage": 16,
}  # fmt: skip


class Inert(dict):  # type: ignore[type-arg]
    """Stands for every class that a pickle names: it takes what is given to it and does nothing."""

    def __init__(self, *args: Any, **_: Any) -> None:
        super().__init__()
        self.args = args

    def __setstate__(self, state: Any) -> None:
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, dict):
                self.update(part)

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def append(self, _: Any) -> None: ...
    def extend(self, _: Any) -> None: ...
    def add(self, _: Any) -> None: ...


class PlainValues(pickle._Unpickler):
    """The unpickler written in Python: its memo cannot be blown up by a number in the file."""

    def __init__(self, file: Any) -> None:
        super().__init__(file, encoding="latin1")
        self.storages: dict[str, int] = {}  # key -> bytes of one element, of torch's storages

    def find_class(self, module: str, name: str) -> Any:
        return type(name, (Inert,), {})

    def persistent_load(self, pid: Any) -> Any:
        if isinstance(pid, tuple) and len(pid) > 2 and pid[0] == "storage":
            size = STORAGE_BYTES.get(getattr(pid[1], "__name__", ""))
            if size:
                self.storages[str(pid[2])] = size
        return None


def plain_values(data: bytes) -> Any:
    """The pickle's values; instances of any class are dicts of their state. Raises for what is cut off."""
    return PlainValues(io.BytesIO(data)).load()


def stated(value: Any, keys: tuple[str, ...]) -> list[dict[str, Any]]:
    """Every dict within `value` that has all the keys."""
    found, todo, seen = [], [value], set()
    while todo:
        each = todo.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, dict):
            if all(key in each for key in keys):
                found.append(each)
            todo += list(each.values())
        elif isinstance(each, (list, tuple, set, frozenset)):
            todo += list(each)
        if isinstance(each, Inert):
            todo += list(getattr(each, "args", ()))
    return found


def saved_values(path: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """Values of some keys at the top of what torch.save wrote; empty where it cannot be told."""
    import zipfile

    try:
        with zipfile.ZipFile(path) as archive:
            member = next((each for each in archive.infolist() if each.filename.endswith("/data.pkl")), None)
            if member is None or member.file_size > PICKLE_MAX:
                return {}
            found = plain_values(archive.read(member))
    except Exception:  # not one of torch's archives: it says nothing, and its wholeness was looked at before
        return {}
    return {key: found[key] for key in keys if key in found} if isinstance(found, dict) else {}

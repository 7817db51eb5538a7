"""Files that a pattern of the spec names: looked up at apply, below workdir or a source of data."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from jobspecs.problems import Refusal


def below(root: Path | None, pattern: str) -> list[str]:
    """Files below `root` that match the glob, as sorted relative paths with `/`. Raises Refusal for a pattern that
    leads out of it, or without a folder.
    """
    if root is None:
        raise Refusal(f"{pattern!r} is looked for below workdir, and the spec has none", "add workdir: .")
    if pattern.startswith(("/", "~")) or ".." in Path(pattern).parts:
        raise Refusal(f"{pattern!r} leads out of {root}", "write it relative to workdir")
    try:
        found = {path.relative_to(root).as_posix() for path in root.glob(pattern) if path.is_file()}
    except (ValueError, NotImplementedError) as error:
        raise Refusal(f"{pattern!r} is no pattern of files: {error}") from None
    return sorted(found)


def items_of(workdir: Path | None, sources: Mapping[str, Path], pattern: str) -> list[str]:
    """A batch's items: paths below workdir, or below $GPUJOB_DATA when the pattern begins with the place of a source
    of `data` (path on the machine -> folder here). Raises Refusal when nothing matches.
    """
    for place, folder in sources.items():
        rest = pattern.removeprefix(f"{place.rstrip('/')}/")
        if rest != pattern and not place.startswith("/"):
            found = [f"{place.rstrip('/')}/{path}" for path in below(folder, rest)]
            break
    else:
        found = below(workdir, pattern)
    if not found:
        raise Refusal(f"no file matches {pattern!r}", "items are looked for below workdir, or below a source of data")
    return found

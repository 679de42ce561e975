"""What lies in a folder of files, seen from the driver: which files a source would read, and how large a row is."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterable
from itertools import islice
from pathlib import Path

# The file system that Spark would take looks for a checksum beside each file, in a file whose name it cannot make where
# there is a colon, and takes a file that was edited since for a broken one.
PLAIN_FILES = {"fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem", "fs.file.impl.disable.cache": "true"}

_SAMPLED_FILES = 8
_SAMPLED_BYTES = 1 << 20


def is_pattern(path: str) -> bool:
    return glob.has_magic(path) or "{" in path


def visible_files(path: str) -> list[Path]:
    """Oldest first. Names that begin with `_` or `.` are skipped, as Spark skips them."""
    found = {file for root in _roots(path) for file in _below(root)}
    return sorted(found, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def folder_columns(path: str) -> set[str]:
    """The columns that folders such as `day=2026-01-01` below `path` stand for."""
    found = {part for root in _roots(path) for file in _below(root) for part in file.relative_to(root).parts[:-1]}
    return {folder.partition("=")[0] for folder in found if "=" in folder}


def for_spark(path: str) -> tuple[str, dict[str, str]]:
    """What Spark is to load, and how, to read what `visible_files` lists."""
    folder, _, below = path.partition("/**")
    options = {**PLAIN_FILES, **({"pathGlobFilter": below[1:]} if below[1:] else {})}
    if Path(folder).is_file():
        # Spark reads a single file only if a pattern has found it.
        folder = f"{folder[:-1]}[{folder[-1]}]"
    # Spark skips hidden files, but not hidden folders that a pattern finds.
    return re.sub(r"(?<=/)(\*+|\?)", lambda wild: "[^._]" + wild[0].replace("?", ""), folder), options


def average_sizes(files: Iterable[Path], form: str) -> tuple[float, float]:
    """Average bytes of a row, and of a file, over the first few files; zeros if there is nothing to measure."""
    sizes, rows, measured = [], 0, 0
    for file in islice(files, _SAMPLED_FILES):
        size = file.stat().st_size
        counted_rows, counted_bytes = _count(file, size, form)
        sizes.append(size)
        rows += counted_rows
        measured += counted_bytes
    return (measured / rows, sum(sizes) / len(sizes)) if rows else (0.0, 0.0)


def line_of(file: Path, line: bytes) -> int | None:
    """The number of the first such line, counted from 1."""
    with file.open("rb") as lines:
        return next(
            (number for number, found in enumerate(lines, 1) if found.rstrip(b"\r\n") == line.rstrip(b"\r")), None
        )


def lines_of(file: Path, wanted: Collection[bytes]) -> dict[bytes, list[int]]:
    """The numbers of all lines that are among the wanted ones, counted from 1. None in a compressed file."""
    found: dict[bytes, list[int]] = {}
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            content = line.removesuffix(b"\n")
            if content in wanted:
                found.setdefault(content, []).append(number)
    return found


def _roots(path: str) -> list[Path]:
    """The files and folders that a pattern finds, or the one that it is."""
    if not is_pattern(path):
        return [Path(path)]
    found = [Path(name) for one in _alternatives(path) for name in glob.glob(one, recursive=True)]  # noqa: PTH207
    return [place for place in found if not _is_hidden(place, path)]


def _alternatives(path: str) -> list[str]:
    """`{a,b}/*` is `a/*` and `b/*`."""
    found = re.fullmatch(r"(.*?)\{([^{}]*)\}(.*)", path)
    if found is None:
        return [path]
    before, choices, after = found.groups()
    return [one for choice in choices.split(",") for one in _alternatives(before + choice + after)]


def _is_hidden(place: Path, pattern: str) -> bool:
    """Whether a wildcard has found a name that is to be skipped."""
    written = Path(pattern).parts
    first = next(number for number, part in enumerate(written) if is_pattern(part))
    return any(name.startswith(("_", ".")) for name in place.parts[first:])


def _below(root: Path) -> Iterable[Path]:
    if root.is_file():
        yield root
        return
    for entry in root.iterdir():
        if not entry.name.startswith(("_", ".")):
            yield from _below(entry)


def _count(file: Path, size: int, form: str) -> tuple[int, int]:
    if form == "parquet":
        from pyarrow.parquet import read_metadata

        return read_metadata(file).num_rows, size
    if form == "orc":
        from pyarrow.orc import ORCFile

        return ORCFile(file).nrows, size
    with file.open("rb") as lines:
        head = lines.read(_SAMPLED_BYTES)
    return head.count(b"\n") + (not head.endswith(b"\n")), len(head)

"""The files of a checkpoint folder: which of them are new, changed or gone since they were last kept."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_LOGS = re.compile(r"(offsets|commits|sources/[^/]+)/[^/]+")
# A picture of the whole state, which Spark makes now and then so that it need not replay every change.
_WHOLE_STATE = re.compile(r"state/.*(\.snapshot|\.zip|\.sst)")


@dataclass(frozen=True)
class Stamp:
    """Differs when a file was written again, because Spark and we rename new files into place."""

    inode: int
    size: int
    modified: int


def files_in(folder: Path) -> dict[str, Stamp]:
    """By path below the folder. Hidden files are drafts, and checksums that Spark can do without."""
    return dict(_walk(folder, ""))


def is_log(path: str) -> bool:
    """Spark's notes of what it planned and did: written once, and never with another meaning."""
    return bool(_LOGS.fullmatch(path))


def is_whole_state(path: str) -> bool:
    return bool(_WHOLE_STATE.fullmatch(path))


def changed(now: Mapping[str, Stamp], before: Mapping[str, Stamp]) -> list[str]:
    return [path for path, stamp in now.items() if before.get(path) != stamp]


def put(folder: Path, path: str, content: bytes) -> None:
    """Write a file of the checkpoint, all or nothing. The disk need not have it at once, because a vault does."""
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    # It belongs to what the file was before, and Spark would compare.
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)
    draft = file.with_name(f".{file.name}.draft")
    draft.write_bytes(content)
    draft.replace(file)


def remove(folder: Path, path: str) -> None:
    file = folder / path
    file.unlink(missing_ok=True)
    (file.parent / f".{file.name}.crc").unlink(missing_ok=True)


def remove_torn(folder: Path) -> None:
    """Spark renames its notes into place without flushing them, so that a power cut leaves names without content.
    Such a note was not saved, hence nothing of its batch is visible anywhere, and Spark plans it anew."""
    for path, stamp in files_in(folder).items():
        if is_log(path) and stamp.size == 0:
            remove(folder, path)


def remove_checksums(folder: Path) -> None:
    """Of sessions that write them. One that does not would leave them beside files that it has written again."""
    for file in folder.rglob(".*.crc"):
        file.unlink(missing_ok=True)


def _walk(folder: Path, below: str) -> Iterator[tuple[str, Stamp]]:
    try:
        entries = list(os.scandir(folder))
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        try:
            if entry.is_dir():
                yield from _walk(folder / entry.name, f"{below}{entry.name}/")
            else:
                stat = entry.stat()
                yield below + entry.name, Stamp(stat.st_ino, stat.st_size, stat.st_mtime_ns)
        except FileNotFoundError:
            # Spark forgets what it no longer needs at any time.
            continue

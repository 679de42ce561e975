"""Writes that are still there after a power cut: the bytes, then the name, reach the disk before a call returns."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Flush a file or a folder (its list of names) to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make(folder: Path) -> None:
    """Create a folder and what is missing above it."""
    if not folder.exists():
        make(folder.parent)
        folder.mkdir(exist_ok=True)
        sync(folder.parent)


def write(path: Path, content: str | bytes) -> None:
    """Replace `path` by `content`, all or nothing."""
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(content.encode() if isinstance(content, str) else content)
    sync(draft)
    draft.replace(path)
    sync(path.parent)

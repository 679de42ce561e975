"""A new checkpoint in place of an old one, such that a crash leaves one of the two, whole."""

from __future__ import annotations

import shutil
from pathlib import Path

from ematix_flow.state import durable
from ematix_flow.state.checkpoint import files_in

NEW, OLD = "checkpoint.new", "checkpoint.old"


def swap(folder: Path) -> None:
    """Put `checkpoint.new`, which is complete, in place of `checkpoint`."""
    new = folder / NEW
    for path in files_in(new):
        durable.sync(new / path)
    for inner in (*(found for found in new.rglob("*") if found.is_dir()), new):
        durable.sync(inner)
    shutil.rmtree(folder / OLD, ignore_errors=True)
    (folder / "checkpoint").rename(folder / OLD)
    settle(folder)


def settle(folder: Path) -> None:
    """Finish what a crash has cut off: without a checkpoint, the new one was about to take its place."""
    if (folder / NEW).exists() and not (folder / "checkpoint").exists():
        (folder / NEW).rename(folder / "checkpoint")
        durable.sync(folder)
    for left in (NEW, OLD):
        shutil.rmtree(folder / left, ignore_errors=True)

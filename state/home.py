"""Where this machine keeps what the product must remember: `$EMATIX_FLOW_HOME`, by default `./.ematix-flow`."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

DEAD_LETTERS = "dead_letters.db"


def home() -> Path:
    return Path(os.environ.get("EMATIX_FLOW_HOME") or ".ematix-flow").absolute()


def state_of(pipeline: str, folder: str | None = None) -> Path:
    """Where a pipeline keeps its state: below `folder`, if its state store names one."""
    return (Path(folder).absolute() if folder else home() / "state") / file_name(pipeline)


def dead_letters_of(pipeline: str, folder: str | None = None) -> Path:
    return state_of(pipeline, folder) / DEAD_LETTERS


def file_name(name: str) -> str:
    """A name of the user's as one part of a path, never hidden: readers skip what begins with `_` or `.`."""
    quoted = quote(name, safe=" ")
    return f"%{ord(quoted[0]):X}{quoted[1:]}" if quoted.startswith(("_", ".")) else quoted


def logs() -> Path:
    folder = home() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder

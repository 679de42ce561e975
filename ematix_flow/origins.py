"""Where in the user's code a declaration stands."""

from __future__ import annotations

import inspect
from pathlib import Path
from types import FrameType

# A class body is executed by `types.new_class`, a model by pydantic: neither is the user's code.
_NOT_THE_USER = frozenset({"ematix_flow", "pydantic", "types"})


def users_frame() -> FrameType | None:
    """The innermost frame outside this package: the user's module, or a function in it."""
    frame = inspect.currentframe()
    while frame and str(frame.f_globals.get("__name__", "")).partition(".")[0] in _NOT_THE_USER:
        frame = frame.f_back
    return frame


def users_line() -> str:
    """`file:line` of the call that the user wrote."""
    frame = users_frame()
    return place(frame.f_code.co_filename, frame.f_lineno) if frame else ""


def place(file: str, line: int) -> str:
    """`file:line`; below the working directory a relative path is easier to read."""
    path = Path(file)
    return f"{path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else file}:{line}"


def file_of(origin: str) -> str:
    """The file of a `file:line`; nothing for code that was typed in, cell by cell or line by line."""
    file, _, _ = origin.rpartition(":")
    return "" if file.startswith("<") or "ipykernel_" in file else file

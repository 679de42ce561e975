"""Imports the Python modules that declare pipelines, and says in words when one of them fails."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ematix_flow.errors import FlowError, UsageError

# The frames of the import itself, which tell a user nothing.
_IMPORTING = {__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"}


class ModuleFailed(FlowError):
    """A module that declares pipelines raised an error while it was imported."""

    code = "module-failed"
    exit_code = 2


def import_module(name: str) -> None:
    """Import a module by its dotted name; the current folder counts as well as what is installed."""
    with _in_words(name):
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
                raise
            raise UsageError(
                f'there is no module "{name}"',
                tried=[f"the current folder, {Path.cwd()}", f"the packages installed for {sys.executable}"],
                next_step="give its dotted name (etl.orders for etl/orders.py) and call flow from the project's folder",
            ) from None


def import_file(name: str, path: Path) -> None:
    """Import this very file, whatever else goes by its name; not again if it is imported already."""
    loaded = sys.modules.get(name)
    if loaded is not None and loaded.__file__ == str(path.absolute()):
        return
    with _in_words(str(path)):
        spec = importlib.util.spec_from_file_location(name, path.absolute())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise


@contextmanager
def _in_words(what: str) -> Iterator[None]:
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        yield
    except FlowError:
        raise
    except (Exception, SystemExit) as error:
        raise ModuleFailed(
            f"{what} cannot be imported: {_place(error)}{type(error).__name__}: {error}",
            next_step="correct it; `flow --debug ...` prints the whole traceback",
        ) from error


def _place(error: BaseException) -> str:
    """The line of the user's that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}:{error.lineno}: "
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename not in _IMPORTING]
    own = [frame for frame in frames if _is_users(Path(frame.filename))]
    last = (own or frames)[-1:]
    return "".join(f"{frame.filename}:{frame.lineno}: " for frame in last)


def _is_users(path: Path) -> bool:
    return path.is_relative_to(Path.cwd()) and "site-packages" not in path.parts

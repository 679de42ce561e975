"""Transforms that run by name, after a load or on their own: what `@ematix.transform` declares."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ematix_flow.connections import Connection
from ematix_flow.cron_fields import schedule_problem
from ematix_flow.errors import DeclarationError, Problem, UsageError
from ematix_flow.origins import place
from ematix_flow.problems import near, shown

_RUNTIME = "ematix_flow.batch.after"
_declared: dict[str, Transform] = {}


@dataclass(frozen=True)
class TransformRef:
    """In `transforms_post`: a transform, or a batch pipeline, that is declared somewhere else."""

    name: str


class Transform:
    """A declared transform. `.run()` calls the function with an open connection to its database."""

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        target_connection: str | Connection | None,
        schedule: str | None,
        origin: str,
    ) -> None:
        functools.update_wrapper(self, function)  # type: ignore[arg-type]  # it is run by a method and not by a call
        self.function, self.name, self.target_connection = function, name, target_connection
        self.schedule, self.origin = schedule, origin

    def run(self) -> Any:
        """Run it now, in this process, in one transaction."""
        return importlib.import_module(_RUNTIME).run_transform(self)

    def __repr__(self) -> str:
        return f"<transform {self.name!r} declared at {self.origin}>"


def declare(
    function: Callable[..., Any],
    *,
    name: str | None = None,
    target_connection: str | Connection | None = None,
    schedule: str | None = None,
) -> Transform:
    """Check and register; nothing is opened or run."""
    code = getattr(function, "__code__", None)
    origin = place(code.co_filename, code.co_firstlineno) if code else ""
    problems = []
    if not inspect.isfunction(function):
        problems.append(Problem("", f"found {shown(function)}", "a function"))
    elif len(inspect.signature(function).parameters) > 2:
        problems.append(Problem("", "the function takes more than two", "none, the connection, or connection, result"))
    if schedule is not None and (wrong := schedule_problem(schedule)):
        problems.append(Problem("schedule", f'found "{schedule}", {wrong}', 'five fields, such as "0 6 * * *"'))
    called = name or str(getattr(function, "__name__", ""))
    if problems:
        raise DeclarationError(f'transform "{called}"', problems, origin=origin)
    _declared[called] = Transform(function, called, target_connection, schedule, origin)
    return _declared[called]


def get(name: str) -> Transform | None:
    return _declared.get(name)


def known(name: str) -> Transform:
    """The transform of this name."""
    if name in _declared:
        return _declared[name]
    guess = near(name, _declared)
    listed = f"declared are {', '.join(sorted(_declared))}" if _declared else "none is declared; name its --module"
    raise UsageError(
        f'there is no transform "{name}"', next_step=f'did you mean "{guess}"? {listed}' if guess else listed
    )


def declared() -> tuple[Transform, ...]:
    """All of them, in the order of their declaration."""
    return tuple(_declared.values())

"""Everything the product raises to a user: one base class, stable codes, facts as attributes, a next step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar


class FlowError(Exception):
    """Base of every error a user can see.

    `code` is stable and safe to match on. `transient` decides whether a supervisor may try again.
    `exit_code` is what `flow` returns: 2 for a bad declaration or bad usage, 1 for a run that failed.
    """

    code: ClassVar[str] = "failed"
    transient: ClassVar[bool] = False
    exit_code: ClassVar[int] = 1

    def __init__(self, found: str, *, tried: Sequence[str] = (), next_step: str = "") -> None:
        self.found = found
        self.tried = tuple(tried)
        self.next_step = next_step
        super().__init__(found)

    def __str__(self) -> str:
        lines = [self.found]
        if self.tried:
            lines.append("Looked at:")
            lines += [f"  - {place}" for place in self.tried]
        if self.next_step:
            lines.append(f"What to do: {self.next_step}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong in a declaration, where it is and what would be right."""

    key: str
    found: str
    allowed: str = ""
    suggestion: str = ""
    file: str = ""
    line: int | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}: " if self.line else f"{self.file}: " if self.file else ""
        key = f"{self.key}: " if self.key else ""
        allowed = f"; allowed: {self.allowed}" if self.allowed else ""
        suggestion = f'; did you mean "{self.suggestion}"?' if self.suggestion else ""
        return f"{place}{key}{self.found}{allowed}{suggestion}"


class DeclarationError(FlowError):
    """A declaration that cannot be accepted, with all its problems at once."""

    code = "bad-declaration"
    exit_code = 2

    def __init__(self, subject: str, problems: Sequence[Problem], *, origin: str = "") -> None:
        self.subject = subject
        self.origin = origin
        """`file:line` of the declaration, where its problems have no file of their own."""
        self.problems = tuple(problems)
        count = "1 problem" if len(self.problems) == 1 else f"{len(self.problems)} problems"
        header = f"{subject} ({origin}): {count}" if origin else f"{subject}: {count}"
        super().__init__("\n".join([header, *(f"  - {p}" for p in self.problems)]))


class UsageError(FlowError):
    """The call itself is wrong: an unknown name, a missing file, arguments that exclude each other."""

    code = "bad-usage"
    exit_code = 2


class UnknownConnection(FlowError):
    """A connection name that no place knows."""

    code = "unknown-connection"
    exit_code = 2


class SecretNotFound(FlowError):
    """A `${...}` reference that could not be resolved when the connection was opened."""

    code = "secret-not-found"


class NotBuilt(FlowError):
    """A part of the declared surface that this version parses but does not run yet."""

    code = "not-built"
    exit_code = 2  # nothing ran

    def __init__(
        self, part: str, *, instead: str = "", words: str = "is declared correctly but this version cannot run it yet"
    ) -> None:
        self.part = part
        super().__init__(f"{part} {words}", next_step=instead)


class MissingExtra(FlowError):
    """A driver that is an optional extra and is not installed."""

    code = "missing-extra"
    exit_code = 2

    def __init__(self, package: str, extra: str) -> None:
        self.package = package
        self.extra = extra
        super().__init__(
            f"the Python package {package!r} is not installed",
            next_step=f"pip install 'ematix-flow-spark[{extra}]'",
        )

"""The pipelines declared in this process, by name."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from ematix_flow.errors import DeclarationError, Problem, UsageError
from ematix_flow.origins import file_of
from ematix_flow.problems import near


class Named(Protocol):
    """A `PipelineSpec`, or a batch pipeline, which becomes one when it runs."""

    @property
    def name(self) -> str: ...
    @property
    def origin(self) -> str: ...


N = TypeVar("N", bound=Named)
_declared: dict[str, Any] = {}


def register(spec: N) -> N:
    """Make a pipeline known. The same file, or one who types, may declare it anew; another file may not."""
    earlier = _declared.get(spec.name)
    if earlier is not None and earlier != spec and _are_different_files(earlier.origin, spec.origin):
        found = f"declared twice, differently: {earlier.origin or 'earlier'} and {spec.origin or 'now'}"
        raise DeclarationError(
            f'pipeline "{spec.name}"', [Problem("name", found, "a name of its own for each pipeline")]
        )
    _declared[spec.name] = spec
    return spec


def get(name: str) -> Any:
    """The pipeline of this name."""
    if name in _declared:
        return _declared[name]
    guess = near(name, _declared)
    known = (
        f"declared are {', '.join(sorted(_declared))}" if _declared else "none is declared; import the module that does"
    )
    next_step = f'did you mean "{guess}"? {known}' if guess else known
    raise UsageError(f'there is no pipeline "{name}"', next_step=next_step)


def declared() -> tuple[Any, ...]:
    """All of them, in the order of their declaration."""
    return tuple(_declared.values())


def _are_different_files(one: str, other: str) -> bool:
    first, second = file_of(one), file_of(other)
    return bool(first and second) and first != second


def clear() -> None:
    """Forget all of them."""
    _declared.clear()

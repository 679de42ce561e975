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
_ambiguous: dict[str, tuple[str, str]] = {}
"""Names that stand for two batch pipelines, and where these are declared."""


def register_batch(pipeline: N) -> N:
    """Make a batch pipeline known. It is mostly run as an object, so that only whoever asks for a name that two files
    have given away is refused."""
    earlier = _declared.get(pipeline.name)
    if earlier is not None and _are_different_files(earlier.origin, pipeline.origin):
        _ambiguous[pipeline.name] = earlier.origin, pipeline.origin
    _declared[pipeline.name] = pipeline
    return pipeline


def refuse_ambiguous(name: str) -> None:
    if name in _ambiguous:
        first, second = _ambiguous[name]
        raise UsageError(
            f'pipeline "{name}" is declared twice, differently: in {first} and in {second}',
            next_step="rename one of them",
        )


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
    refuse_ambiguous(name)
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
    _ambiguous.clear()

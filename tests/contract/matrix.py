"""Writes docs/support-matrix.md from what the backends declare: `python -m tests.contract.matrix`."""

import inspect
from pathlib import Path
from types import ModuleType

from tests.contract import test_reading, test_sinks, test_sources
from tests.contract.backends import BACKENDS, Backend
from tests.contract.origins import ORIGINS

PAGE = Path(__file__).parents[2] / "docs/support-matrix.md"

_HEAD = """# Support matrix

What each target does. The rows are the cases of the behaviour suite (`tests/contract`), which runs each of them against
each target: a "yes" is a test that passes, and a difference is a test that is known to fail, so that this page cannot
be wrong for long. Made by `python -m tests.contract.matrix`.
"""


_SOURCES = """
## Databases as sources

The same for sources (`test_sources.py` and `test_reading.py` in `tests/contract`).
"""


def cases(module: ModuleType = test_sinks) -> list[str]:
    """The names of the tests, without `test_`, in the order in which they are written."""
    found = inspect.getmembers(module, inspect.isfunction)
    tests = [test for name, test in found if name.startswith("test_")]
    return [
        test.__name__.removeprefix("test_") for test in sorted(tests, key=lambda test: test.__code__.co_firstlineno)
    ]


def page() -> str:
    reasons: list[str] = []
    lines = [
        _HEAD,
        f"| | {' | '.join(f'`{backend.name}`' for backend in BACKENDS)} |",
        "|---" * (len(BACKENDS) + 1) + "|",
    ]
    for case in cases():
        cells = [_cell(backend, case, reasons) for backend in BACKENDS]
        lines.append(f"| {case.replace('_', ' ')} | {' | '.join(cells)} |")
    notes = [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join([*lines, "", *notes, _SOURCES, *_sources(), ""])


def _sources() -> list[str]:
    """Every case that is about each database; there is no difference to declare."""
    names = [f"`{origin.name}`" for origin in ORIGINS]
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    about = [
        case
        for module in (test_sources, test_reading)
        for case in cases(module)
        if "origin" in inspect.signature(getattr(module, f"test_{case}")).parameters
    ]
    return [*lines, *(f"| {case.replace('_', ' ')} | {' | '.join(['yes'] * len(names))} |" for case in about)]


def _cell(backend: type[Backend], case: str, reasons: list[str]) -> str:
    word, reason = ("never", backend.never[case]) if case in backend.never else ("not yet", backend.not_yet.get(case))
    if reason is None:
        return "yes"
    if reason not in reasons:
        reasons.append(reason)
    return f"{word} ({reasons.index(reason) + 1})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

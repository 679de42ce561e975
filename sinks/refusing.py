"""Finds the rows of a batch that a table does not accept, by trying parts of the batch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

Attempt = Callable[[int, int, Collection[int]], str | None]
"""Tries the rows from one number to another, without some, undoes it, and says why they were refused or None."""


def refused_rows(rows: Sequence[int], attempt: Attempt) -> dict[int, str]:
    """Rows that fail alone, found by halving; then, as long as the rest fails together, the one that came last."""
    if not rows or (reason := attempt(rows[0], rows[-1], ())) is None:
        return {}
    refused = _failing_alone(rows, reason, attempt)
    rest = [row for row in rows if row not in refused]
    while rest and (reason := attempt(rest[0], rest[-1], refused)) is not None:
        # The shortest beginning that fails ends with the row that conflicts with one before it.
        accepted, failing = 0, len(rest)
        while failing - accepted > 1:
            middle = (accepted + failing) // 2
            found = attempt(rest[0], rest[middle - 1], refused)
            if found is None:
                accepted = middle
            else:
                failing, reason = middle, found
        refused[rest.pop(failing - 1)] = reason
    return dict(sorted(refused.items()))


def _failing_alone(rows: Sequence[int], reason: str, attempt: Attempt) -> dict[int, str]:
    """Of rows that fail together for a reason, those that also fail alone."""
    if len(rows) == 1:
        return {rows[0]: reason}
    middle = len(rows) // 2
    refused: dict[int, str] = {}
    for half in (rows[:middle], rows[middle:]):
        if (why := attempt(half[0], half[-1], ())) is not None:
            refused |= _failing_alone(half, why, attempt)
    return refused

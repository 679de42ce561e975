"""`RunResult`: what one run of a pipeline did, in numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class RunResult:
    """Every count is of this run alone."""

    pipeline: str
    status: str
    batches: int = 0
    rows_consumed: int = 0
    """All rows taken from the sources, bad ones included."""
    rows_written: dict[str, int] = field(default_factory=dict)
    """By target."""
    row_counts: dict[str, dict[str, int]] = field(default_factory=dict)
    """By target: rows inserted, updated, unchanged, deleted, closed, where the target can tell."""
    late_rows: dict[str, int] = field(default_factory=dict)
    """By policy: drop, reopen, dlq."""
    dlq_rows: dict[str, int] = field(default_factory=dict)
    """By stage: decode, event_time, transform, late, write."""
    dropped_rows: dict[str, int] = field(default_factory=dict)
    """By stage: decode, event_time, transform, write."""
    changes: dict[str, int] = field(default_factory=dict)
    """CDC counters: creates, updates, deletes, skipped, idempotent_skipped, truncates."""
    changes_by_table: dict[str, dict[str, int]] = field(default_factory=dict)
    """The same by source table, where changes are of several."""
    held_changes: int = 0
    """With `transactional = true`: changes that wait, after the last batch, for the rest of their transactions."""
    watermark: datetime | None = None
    duration_seconds: float = 0.0

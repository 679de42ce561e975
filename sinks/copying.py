"""Rows from the executors into a table of a database where nobody reads: each partition over its own connection."""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING

from ematix_flow.sinks.ahead import AHEAD, unpacked
from ematix_flow.sinks.base import Staged

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

COPY = "_flow_copy"
"""Hidden column of copied rows: the number of the attempt that copied them."""

_RESULT = "copy long, rows long, with_null array<string>, failure string"

Ingest = Callable[["pa.RecordBatchReader"], str]
"""Copies the rows of a partition; in the words of the driver, why they did not all arrive, or an empty text."""


@dataclass(frozen=True)
class Copied:
    """What has arrived. A row of any other copy is of an attempt that Spark gave up or repeated."""

    copies: tuple[int, ...]
    rows: int
    with_null: frozenset[str]
    """The columns in which there is a NULL."""
    failure: str = ""
    """In the words of the driver, if a partition could not be copied."""


@dataclass(frozen=True, kw_only=True)
class StagedTable(Staged):
    """Rows in a table of the database and in no folder."""

    table: str
    """Qualified and quoted."""
    schema: StructType
    """Of the rows, before they were encoded."""
    copied: Copied


def staging_name(pipeline: str, target: str) -> str:
    """The same for every batch, so that the next one finds what a crash left behind."""
    of = json.dumps([pipeline, target])
    return f"_ematix_flow_staged_{hashlib.sha256(of.encode()).hexdigest()[:16]}"


def copied(rows: DataFrame, ingest: Ingest, *, numbered: bool = True) -> Copied:
    """One Spark job. The table has the columns of the rows and, if they are to be numbered, `COPY`."""
    parts = rows.mapInArrow(partial(_copy, ingest, numbered), _RESULT).collect()
    return Copied(
        tuple(part["copy"] for part in parts),
        sum(part["rows"] for part in parts),
        frozenset(name for part in parts for name in part["with_null"]),
        next((part["failure"] for part in parts if part["failure"]), ""),
    )


def _copy(ingest: Ingest, numbered: bool, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """One partition. A failure is told rather than raised: Spark would try again at once, and bury the words."""
    import pyarrow as pa

    first = next(batches, None)
    if first is None:
        return
    columns = first.select([name for name in first.schema.names if name != AHEAD]).schema
    copy, rows, with_null = secrets.randbits(63), 0, set[str]()

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal rows
        for batch in unpacked(chain([first], batches), columns.names):
            rows += batch.num_rows
            with_null.update(name for name in batch.schema.names if batch[name].null_count)
            mark = pa.repeat(pa.scalar(copy, pa.int64()), batch.num_rows) if numbered else None
            yield batch if mark is None else batch.append_column(COPY, mark)

    columns = columns.append(pa.field(COPY, pa.int64())) if numbered else columns
    failure = ingest(pa.RecordBatchReader.from_batches(columns, counted()))
    yield pa.record_batch(
        [[copy], [rows], pa.array([sorted(with_null)], pa.list_(pa.string())), [failure]],
        names=["copy", "rows", "with_null", "failure"],
    )

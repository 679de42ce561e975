"""The same pipeline with its ends in a folder: a test feeds what it reads, and reads what it writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ematix_flow.connections import DuckDBConnection, ObjectStoreLocalConnection
from ematix_flow.errors import UsageError
from ematix_flow.specs import Lookup, PipelineSpec, Source, SparkSettings, StateStore, TableRef, Target
from ematix_flow.state.home import file_name

Row = Mapping[str, Any]


def inbox(folder: Path, source: int) -> Path:
    return folder / f"source-{source}"


def database(folder: Path, target: int) -> Path:
    """One per target: two tables of the same name may be declared in two databases."""
    return folder / f"target-{target}.duckdb"


def state(folder: Path) -> Path:
    return folder / "state"


def offline(spec: PipelineSpec, folder: Path, lookups: Mapping[str, Sequence[Row]]) -> PipelineSpec:
    """No connection is looked up: a test needs none of the settings that name a server."""
    known = spec.transform.lookups
    if unknown := [name for name in lookups if name not in known]:
        raise UsageError(
            f"pipeline {spec.name!r} has no lookup {', '.join(map(repr, unknown))}",
            next_step=f"declared are: {', '.join(known) or 'none'}",
        )
    replaced = {name: _lookup(name, known[name], rows, folder) for name, rows in lookups.items()}
    return spec.model_copy(
        update={
            "sources": tuple(_source(spec, i, folder) for i in range(len(spec.sources))),
            "targets": tuple(_target(spec, i, folder) for i in range(len(spec.targets))),
            "transform": spec.transform.model_copy(update={"lookups": known | replaced}),
            "state_store": StateStore(path=str(state(folder))),
            "dead_letter_topic": None,
            "dlq_store": "auto",
            # The declared master may be a cluster.
            "spark": SparkSettings(conf=spec.spark.conf),
        }
    )


def _source(spec: PipelineSpec, i: int, folder: Path) -> Source:
    declared, name = spec.sources[i], spec.source_names[i]
    path = inbox(folder, i)
    path.mkdir()
    return Source(
        connection=ObjectStoreLocalConnection(path=str(path), format="json_lines"),
        # A topic may be called like a lookup; a name that SQL knows may not.
        name=declared.name if name in spec.transform.lookups else name,
        schema=declared.schema,
        event_time_column=declared.event_time_column,
        max_rows_per_batch=declared.max_rows_per_batch,
        max_files_per_batch=declared.max_files_per_batch,
    )


def _target(spec: PipelineSpec, i: int, folder: Path) -> Target:
    declared = spec.targets[i]
    return Target(
        connection=DuckDBConnection(path=str(database(folder, i))),
        table=declared.table or TableRef(name=spec.target_names[i]),
        primary_key=declared.primary_key,
        mode=declared.mode,
        keys=declared.keys,
        on_drift=declared.on_drift,
    )


def _lookup(name: str, declared: Lookup, rows: Sequence[Row], folder: Path) -> Lookup:
    """Parquet, which keeps the types of Python's values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = dict.fromkeys(column for row in rows for column in row)
    if not columns:
        raise UsageError(
            f"lookup {name!r}: the columns are known by the rows, and there are none",
            next_step="give at least one row; one that no row of the stream matches stands for an empty table",
        )
    file = folder / f"lookup-{file_name(name)}.parquet"
    try:
        pq.write_table(pa.table({column: [row.get(column) for row in rows] for column in columns}), file)
    except pa.ArrowException as error:
        raise UsageError(f"lookup {name!r}: {error}", next_step="give all values of a column the same type") from error
    connection = ObjectStoreLocalConnection(path=str(file), format="parquet")
    return Lookup(connection=connection, refresh_interval_ms=declared.refresh_interval_ms)

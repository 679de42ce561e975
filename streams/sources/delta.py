"""A Delta table as a stream: Spark's own Delta source reads what the table holds, then each commit that adds rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast
from urllib.parse import unquote

from ematix_flow.connections import DeltaLocalConnection
from ematix_flow.errors import DeclarationError, FlowError, Problem
from ematix_flow.problems import near
from ematix_flow.specs import Source
from ematix_flow.state.store import Store
from ematix_flow.streams.columns import misfit, quoted
from ematix_flow.streams.envelope import Carried, Decoded, Origin, as_json_bytes, wrapped
from ematix_flow.streams.sources.base import SourceNotFound
from ematix_flow.streams.sources.listing import average_sizes, visible_files
from ematix_flow.streams.sources.schemas import fix_schema, known_schema

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

_NOT_ONLY_ADDED = ("DELTA_SOURCE_IGNORE_DELETE", "DELTA_SOURCE_TABLE_IGNORE_CHANGES")


class SourceChanged(FlowError):
    """Rows of a source were changed or deleted after they had been read."""

    code = "source-changed"

    def __init__(self, words: str) -> None:
        super().__init__(
            f"a Delta source is read as a log of added rows, but rows of it were changed or deleted: {words}",
            next_step="read its change feed (delta.enableChangeDataFeed of the table, change_feed of the source), "
            "write the source in mode append, or reset the state of this pipeline to read all of it again",
        )

    @classmethod
    def found_in(cls, error: BaseException) -> SourceChanged | None:
        """From what ended a query; None if it was something else."""
        lines = [line.strip() for line in str(error).splitlines() if any(c in line for c in _NOT_ONLY_ADDED)]
        return cls(lines[0]) if lines else None


class DeltaSource:
    replayable = True
    ranged = False
    payload_format = "delta"
    exact_positions = False

    def __init__(
        self,
        source: Source,
        connection: DeltaLocalConnection,
        name: str,
        batch_bytes: int | None,
        store: Store,
        session: SparkSession,
    ) -> None:
        self._source, self._batch_bytes = source, batch_bytes
        self._path = _located(Path(connection.path).absolute(), source.query)
        if not (self._path / "_delta_log").is_dir():
            raise SourceNotFound(
                f"source {name!r}: {self._path} is not a Delta table",
                next_step="create the table, or correct `path` and `query` of the source",
            )
        held = session.read.format("delta").load(str(self._path)).schema
        self._held = {field.name.lower(): field.dataType for field in held.fields}
        self.origin = Origin(name, as_json_bytes)
        self.payload_schema = self._fixed(held, name, store)

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        from pyspark.sql import functions as F

        if self._source.change_feed:
            return self._changes(session, carried)
        rows = session.readStream.format("delta").options(**self._limits()).load(str(self._path))
        written = _times_of_files(F.input_file_name())
        order = F.struct(
            written.alias("time"), F.input_file_name().alias("file"), F.input_file_block_start().alias("block")
        )
        position = F.expr("concat(input_file_name(), '#', input_file_block_start())")
        decoded = self._decoded(rows, written, order, position)
        return wrapped(decoded, self.origin, carried, self.payload_schema, self._source.event_time_column)

    def _changes(self, session: SparkSession, carried: Carried) -> DataFrame:
        """What a row was before an update is of no use: the row that it becomes has the same key."""
        from pyspark.sql import functions as F

        reader = session.readStream.format("delta").option("readChangeFeed", "true").options(**self._limits())
        rows = reader.load(str(self._path)).where("_change_type <> 'update_preimage'")
        gone = F.col("_change_type") == "delete"
        # An update of a key is a delete and an insert of one commit.
        order = F.struct(F.col("_commit_version").alias("commit"), (~gone).alias("there"))
        position = F.concat(F.lit("commit#"), F.col("_commit_version").cast("string"))
        decoded = self._decoded(rows, F.col("_commit_timestamp"), order, position)
        decoded = replace(decoded, gone=gone, timed=True)
        return wrapped(decoded, self.origin, carried, self.payload_schema, self._source.event_time_column)

    def _decoded(self, rows: DataFrame, arrived: Column, order: Column, position: Column) -> Decoded:
        from pyspark.sql import functions as F

        fields = self.payload_schema.fields
        raw = {field.name: F.col(quoted(field.name)) for field in fields}
        misfits = [misfit(f.name, f.dataType) for f in fields if f.dataType != self._held[f.name.lower()]]
        message = F.coalesce(F.lit(None).cast("string"), *misfits)
        return Decoded(
            rows=rows,
            columns={field.name: raw[field.name].try_cast(field.dataType) for field in fields},
            arrived=arrived,
            order=order,
            wrong=message.isNotNull(),
            code="bad-delta",
            message=message,
            position=position,
            payload=F.struct(*raw.values()),
        )

    def reason(self, payload: bytes) -> str:
        return "the row does not fit the declared schema"

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        return {}

    def place(self, position: str, payload: bytes) -> str:
        return f"{self._path}, {position.replace('#', ' ')}" if self._source.change_feed else str(_file(position))

    def arrived(self, position: str) -> datetime | None:
        if self._source.change_feed:
            return None
        file = _file(position)
        if self._source.event_time_column is not None or not file.exists():
            return None
        return datetime.fromtimestamp(file.stat().st_mtime, UTC)

    def release(self, batch: int) -> None:
        """Rows stay in the table; which of its commits were read is part of the checkpoint."""

    def _fixed(self, held: StructType, name: str, store: Store) -> StructType:
        """Declared, or as the table was at the first start."""
        from pyspark.sql.types import StructField, StructType

        schema = known_schema(self._source, name, store)
        if schema is None:
            schema = StructType([StructField(field.name, field.dataType) for field in held.fields])
            fix_schema(schema, name, store)
        if problems := [
            Problem(f"source {name!r} schema", f"no column {column}", ", ".join(self._held), near(column, self._held))
            for column in schema.fieldNames()
            if column.lower() not in self._held
        ]:
            raise DeclarationError(f"Delta table {self._path}", problems)
        return schema

    def _limits(self) -> dict[str, int]:
        """A file is never split over two batches; rows are turned into bytes with the files that are there now. A
        snapshot is one batch, because what it lacks is deleted."""
        if self._source.snapshot:
            return {"maxFilesPerTrigger": 2**31 - 1}
        rows, sizes = self._source.max_rows_per_batch, [self._batch_bytes]
        if rows is not None:
            row_size, _ = average_sizes(visible_files(str(self._path)), "parquet")
            sizes.append(max(1, round(rows * row_size)))
        given = {
            "maxFilesPerTrigger": self._source.max_files_per_batch,
            "maxBytesPerTrigger": min((size for size in sizes if size is not None), default=None),
        }
        return {option: limit for option, limit in given.items() if limit is not None}


def _located(root: Path, query: str) -> Path:
    """`analytics.orders` is the table that a target of this schema and name writes, unless a folder is called so."""
    literal = root / query
    return literal if literal.exists() else root / query.replace(".", "/")


def _times_of_files(files: Column) -> Column:
    """When each file was written, which Spark tells of a stream of files but not of a Delta stream."""
    from pyspark.sql.pandas.functions import arrow_udf

    def times(names: pa.Array) -> pa.Array:
        import pyarrow as pa

        found = names.dictionary_encode()
        written = [_local(name).stat().st_mtime_ns // 1000 for name in found.dictionary.to_pylist()]
        return pa.array(written, pa.timestamp("us", "UTC")).take(found.indices)

    # A lambda, because Spark would look for the meaning of a function's annotations.
    function = arrow_udf(lambda names: times(names), "timestamp")  # type: ignore[call-overload]  # noqa: PLW0108
    return cast("Column", function(files))


def _file(position: str) -> Path:
    return _local(position.rpartition("#")[0])


def _local(name: str) -> Path:
    """From `file:///the%20path`, as Spark writes it."""
    return Path(unquote(name).removeprefix("file://").removeprefix("file:"))

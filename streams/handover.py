"""How the rows of one stage of a pipeline come to the next: as files beside the checkpoint of the first, saved with it.

Rows come out of a join later than they happened, some only when their time is over. So the next stage must not take
their times for how far event time has come: each batch brings a horizon, a time before which no row will come any more,
also if it brings no rows.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, ClassVar

from ematix_flow.connections import ObjectStoreLocalConnection
from ematix_flow.sinks.base import EVENT_TIME, Batch, Staged
from ematix_flow.sinks.files import FilesSink
from ematix_flow.specs import Join, Source, Target
from ematix_flow.state.kernel import NO_WATERMARK
from ematix_flow.state.store import Store
from ematix_flow.streams.columns import quoted
from ematix_flow.streams.envelope import (
    ERROR,
    EVENT_TS,
    Carried,
    Origin,
    as_json_bytes,
    with_itself_as_payload,
)
from ematix_flow.streams.packing import HORIZON
from ematix_flow.streams.sources.base import NothingToInfer
from ematix_flow.streams.tagging import KEEP
from ematix_flow.streams.watermark import planned

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_SCHEMA = "handover.json"
_IS_ROW = "_flow_is_row"


def target_in(store: Store) -> Target:
    return Target(connection=_folder(store))


def source_in(store: Store) -> Source:
    return Source(connection=_folder(store), name="join")


def _folder(store: Store) -> ObjectStoreLocalConnection:
    return ObjectStoreLocalConnection(path=str(store.handover), format="parquet")


class HandOver(FilesSink):
    """The target of a join that another stage follows."""

    def __init__(self, store: Store, name: str, join: Join) -> None:
        super().__init__(target_in(store), _folder(store), name)
        self._store = store
        least, most = join.deltas
        # A row waits so long for partners.
        self._behind_us = (max(most, -least, 0) + (join.allowed_lateness_ms or 0)) * 1000

    def prepare(self, schema: StructType) -> StructType:
        super().prepare(schema)
        self._store.remember(_SCHEMA, schema.json())
        return schema

    def stage(self, rows: DataFrame, batch: Batch) -> Staged:
        from pyspark.sql import functions as F

        horizon = F.lit(self._horizon(batch)).cast("long").alias(HORIZON)
        names = rows.columns
        nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        beat = rows.sparkSession.range(1, numPartitions=1).select(*nothing, horizon, F.lit(False).alias(_IS_ROW))
        given = rows.select(*[F.col(quoted(name)) for name in names], horizon, F.lit(True).alias(_IS_ROW))
        # In one file, which appears as a whole: then no row of the batch comes after its horizon.
        return super().stage(given.union(beat).repartition(1), batch)

    def _horizon(self, batch: Batch) -> int | None:
        """What the watermark of the batch has passed is out with it."""
        watermark = planned(self._store.checkpoint, batch.number)
        return None if watermark == NO_WATERMARK else watermark - self._behind_us


class HandedOver:
    """The rows that a join has given, as the source of the stage that follows it."""

    replayable: ClassVar[bool] = True
    ranged: ClassVar[bool] = False
    payload_format = "json"
    exact_positions = False

    def __init__(self, store: Store) -> None:
        from pyspark.sql.types import StructType

        known = store.recall(_SCHEMA)
        if known is None:
            raise NothingToInfer("the join has not given any rows yet", next_step="wait for its first batch")
        self._folder: Path = store.handover
        self.origin = Origin("join", as_json_bytes)
        self.payload_schema = StructType.fromJson(json.loads(known))

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        from pyspark.sql import functions as F
        from pyspark.sql.types import BooleanType, LongType, StructType

        schema = StructType([*self.payload_schema.fields]).add(HORIZON, LongType()).add(_IS_ROW, BooleanType())
        # What was taken over is of no use any more.
        reader = session.readStream.schema(schema).options(maxFileAge="36500d", cleanSource="delete")
        rows = reader.parquet(str(self._folder)).withColumnRenamed(_IS_ROW, KEEP)
        rows = rows.withColumns({ERROR: F.lit(None).cast("string"), EVENT_TIME: F.col(EVENT_TS).cast("timestamp")})
        return with_itself_as_payload(rows, self.payload_schema.fieldNames()) if carried.payload else rows

    def reason(self, payload: bytes) -> str:
        return ""

    def place(self, position: str, payload: bytes) -> str:
        return ""

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        return {}

    def arrived(self, position: str) -> datetime | None:
        return None

    def release(self, batch: int) -> None:
        """Spark removes files when it is done with them."""


def with_event_ts(rows: DataFrame) -> DataFrame:
    """Of the joined rows: when the later one of both happened."""
    from pyspark.sql import functions as F

    return rows if EVENT_TS in rows.columns else rows.withColumn(EVENT_TS, F.col(EVENT_TIME))

"""Kafka topics as a stream: Spark's own Kafka source, read committed, with the records' own positions and times."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import KafkaConnection
from ematix_flow.sinks import avro, protobuf, protobuf_files
from ematix_flow.sinks.ahead import AHEAD
from ematix_flow.sinks.kafka_client import java_properties, librdkafka_properties, needed, opened
from ematix_flow.sinks.schema_registry import HEADER_BYTES, MAGIC, Schema, registry_of
from ematix_flow.specs import Source
from ematix_flow.specs.position import Position
from ematix_flow.state.home import file_name
from ematix_flow.state.store import Store
from ematix_flow.streams.avro_envelopes import PROBLEM, envelope_texts
from ematix_flow.streams.avro_reader import avro_columns
from ematix_flow.streams.decode import Parsed, json_text
from ematix_flow.streams.envelope import Carried, Decoded, Origin, wrapped
from ematix_flow.streams.json_reader import plain_objects
from ematix_flow.streams.lagging import tells
from ematix_flow.streams.one_pass import TIMESTAMP, VALUE, read_ahead
from ematix_flow.streams.protobuf_reader import first_message, protobuf_columns
from ematix_flow.streams.reasons import why_bad_json
from ematix_flow.streams.registered_reader import unnamed_schema
from ematix_flow.streams.source_order import NAMED
from ematix_flow.streams.sources.base import NoColumns, NothingToInfer
from ematix_flow.streams.sources.kafka_identity import Identity
from ematix_flow.streams.sources.kafka_lag import KafkaLag
from ematix_flow.streams.sources.kafka_positions import begin_at, end_before
from ematix_flow.streams.sources.kafka_topics import (
    Notes,
    Positions,
    Subscription,
    check_nothing_is_lost,
    positions_in,
    ranges,
    sample,
)
from ematix_flow.streams.sources.schemas import declared_schema, fix_schema, infer_json, known_schema, telling_case

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Message
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructType

# Read by a schema of a registry, with what has to be installed for it.
_DECODERS = {"avro": avro.needed, "protobuf": protobuf_files.needed}
_TEXT, _HEADER = "_flow_text", "_flow_header"
_TOMBSTONE = "the record has no value: it is a tombstone"
_HEADLESS = "the record does not begin as those do that name a schema of a registry: 0, then four bytes of id"
_LONGEST = (1 << 31) - 1
_RAW = "value binary"
# Of a record that is not there yet.
_GUESSED_BYTES = 1024
# A batch of a range takes no fewer.
_FEWEST_RECORDS = 10_000
# So many waiting records are worth the start of Python workers, and the milliseconds that each batch then takes longer.
_BACKLOG = 100_000
# What a record has beyond its payload.
_BESIDE = ("key", "headers", "topic", "partition", "offset", "timestamp")
_COMMIT_SECONDS = 10.0
# A client asks for more of a partition only when it has handed out what it has: so it should have plenty, and hand out
# many at once. Java's defaults are 500 records, 64 KiB and a megabyte of each partition, which it keeps for a while.
# At the end of a partition, a client that has all asks for more before it hands out what it has; and Spark, which then
# asks where the end is, is answered only after the half second in which a broker may wait for a record.
_READS = {"max.poll.records": 20_000, "receive.buffer.bytes": 1 << 20, "fetch.max.wait.ms": 10}
_MOST_OF_ONE, _OF_ALL = 4 << 20, 64 << 20
# What Spark decides, and takes from nobody.
_SPARKS_OWN = frozenset({"enable.auto.commit", "key.deserializer", "value.deserializer", "interceptor.classes"})

_log = logging.getLogger(__name__)


class KafkaSource:
    replayable = True
    ranged = True
    exact_positions = True

    def __init__(
        self,
        source: Source,
        connection: KafkaConnection,
        name: str,
        batch_bytes: int | None,
        store: Store,
        session: SparkSession,
    ) -> None:
        needed(connection)
        self._source, self._connection, self._store = source, connection, store
        self._user = f"source {name!r}"
        self._topics = Subscription(source.query)
        self._group: Consumer | None = None
        self.payload_format = connection.payload_format
        self.origin = Origin(name)
        self._registry = None
        if self.payload_format in _DECODERS:
            _DECODERS[self.payload_format]()
            self._registry = registry_of(connection, self._user)
        self._schemas = None
        if self.payload_format == "json_schema" and (connection.schema_registry or connection.schema_registry_url):
            self._schemas = registry_of(connection, self._user)
        self._reader: Schema | None = None
        self.envelopes = False
        """Values are change envelopes, whose rows have the columns that each was written with."""
        there = self._there = ranges(connection, self._topics, self._user)
        self._notes = Notes(store.checkpoint, name, self._topics)
        self._identity = Identity(connection, store, name)
        ids = self._identity.found(self._identity.asked(there))
        if source.on_data_loss == "fail":
            check_nothing_is_lost(self._notes.next(), there, self._user, self._identity.anew(ids))
        self._identity.accept(ids)
        self._end: Positions | None = None
        self._sample: list[Message] | None = None
        self.payload_schema = self._fixed(name, there, session)
        self._most = self._records_per_batch(batch_bytes, there)
        tells(store.pipeline, store, name, KafkaLag(connection, self._notes))

    def end_before(self, position: Position) -> None:
        """Read a range that ends there, beside the pipeline, whose consumer group is not told of it."""
        memory = f"end.{file_name(self.origin.source)}.json"
        known = self._store.recall(memory)
        if known is None:
            self._end = end_before(position, self._there, self._connection, self._user)
            self._store.remember(memory, json.dumps(self._end))
        else:
            # A batch that is repeated has to have the same records.
            self._end = positions_in(known)
        if self._most is None:
            # Not all that comes after the range at once, of which nothing is wanted.
            self._most = max(_FEWEST_RECORDS, _between(self._beginning(), self._end or {}))

    def is_over(self, batch: int) -> bool:
        ends = self._notes.end_of(batch)
        if self._end is None or ends is None:
            return False
        return all(ends.get(topic, {}).get(n, 0) >= end for topic, of in self._end.items() for n, end in of.items())

    def read(self, session: SparkSession, carried: Carried) -> DataFrame:
        from pyspark.sql import functions as F

        records = session.readStream.format("kafka").options(**self._options(carried)).load()
        if self._end is not None:
            records = records.where(_is_before(self._end))
        ahead = carried.ahead if self.payload_format == "json" and self._has_backlog() else None
        if ahead is not None:
            records = read_ahead(records.select(*_wanted(carried)), self.payload_schema, ahead)
            if TIMESTAMP not in records.columns:
                # Nobody asks for it.
                records = records.withColumn(TIMESTAMP, F.lit(None).cast("timestamp"))
        position = F.concat_ws("/", "topic", "partition", "offset")
        parsed = self.parsed(records, "value")
        decoded = Decoded(
            rows=parsed.rows,
            columns=parsed.columns,
            arrived=F.col("timestamp"),
            timed=True,
            # Records of one key are in one partition, where offsets tell which came later.
            order=F.struct("topic", "partition", "offset"),
            wrong=parsed.wrong,
            code=f"bad-{self.payload_format.replace('_', '-')}",
            message=parsed.message,
            position=position,
            payload=F.col("value"),
            key=F.col("key"),
            # Spark brings partitions in one order when it plans a batch, and in another one when it repeats it.
            number=_number(self._topics),
            part=F.concat_ws("/", "topic", "partition"),
            beside={f"_{name}": F.col(name) for name in _BESIDE if name in records.columns},
            ahead=None if ahead is None else F.col(AHEAD),
        )
        return wrapped(decoded, self.origin, carried, self.payload_schema, self._source.event_time_column)

    def reason(self, payload: bytes) -> str:
        content = payload[HEADER_BYTES:] if self.payload_format == "json_schema" else payload
        return why_bad_json(content, self.payload_schema)

    def place(self, position: str, payload: bytes) -> str:
        topic, partition, offset = position.rsplit("/", 2)
        return f"topic {topic} partition {partition} offset {offset}"

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        return {}

    def arrived(self, position: str) -> datetime | None:
        """It is in the row."""
        return None

    def rows_of(self, batch: int) -> int | None:
        begins, ends = self._notes.end_of(batch - 1), self._notes.end_of(batch)
        if not begins or not ends or any(of.keys() - begins.get(topic, {}) for topic, of in ends.items()):
            return None
        return _between(begins, ends)

    @property
    def takes_all(self) -> bool:
        return self._most is None

    def release(self, batch: int) -> None:
        """Commit the group's offsets, for everybody who looks at the lag of consumers. Our own positions are in the
        checkpoint, so that a failure costs nothing but a look from outside. A topic that was made anew under us may
        have had more records than were read of the old one, and nobody else notices."""
        positions = self._notes.end_of(batch)
        if not positions:
            return
        asked = self._identity.asked(positions) if self._source.on_data_loss == "fail" else {}
        if self._connection.group_id is not None and self._end is None:
            self._commit(positions)
        # The answer has come meanwhile.
        ids = self._identity.found(asked)
        if anew := self._identity.anew(ids):
            there = ranges(self._connection, self._topics, self._user)
            check_nothing_is_lost(self._notes.end_of(batch - 1) or {}, there, self._user, anew)
            self._identity.accept(ids)

    def _commit(self, positions: Positions) -> None:
        from confluent_kafka import KafkaException, TopicPartition

        ends = [
            TopicPartition(topic, number, offset) for topic, of in positions.items() for number, offset in of.items()
        ]
        try:
            self._committing().commit(offsets=ends, asynchronous=False)
        except KafkaException as error:
            facts = {"pipeline": self._store.pipeline, "group": self._connection.group_id, "reason": str(error)}
            _log.warning("offsets of the group were not committed", extra=facts)

    def _committing(self) -> Consumer:
        """Never subscribed, so that Kafka gives it no partition to read."""
        from confluent_kafka import Consumer

        if self._group is None:
            given = {"group.id": self._connection.group_id, "enable.auto.commit": False}
            self._group = opened(Consumer, {**librdkafka_properties(self._connection), **given})
        return self._group

    def _options(self, carried: Carried) -> dict[str, str]:
        partitions = sum(map(len, self._there.values()))
        each = {"max.partition.fetch.bytes": min(_MOST_OF_ONE, max(1 << 20, _OF_ALL // max(partitions, 1)))}
        properties = {**_READS, **each, **java_properties(self._connection)}.items()
        given = {f"kafka.{key}": str(value) for key, value in properties if key not in _SPARKS_OWN}
        given |= self._topics.spark_option
        given |= {
            "kafka.isolation.level": "read_committed",
            "startingOffsets": self._start(),
            "failOnDataLoss": "true" if self._source.on_data_loss == "fail" else "false",
            "includeHeaders": "true" if "_headers" in carried.named else "false",
            # Whoever grants rights to consumer groups can name ours by their beginning.
            "groupIdPrefix": f"{self._connection.group_id or 'ematix-flow'}-reading",
            NAMED: self.origin.source,
        }
        return given | ({} if self._most is None else {"maxOffsetsPerTrigger": str(self._most)})

    def _start(self) -> str:
        """In Spark's words; it asks for them, but has no use for them once there is a checkpoint."""
        position = Position.of(self._source.start or self._connection.auto_offset_reset)
        if position.end is not None or self._notes.next():
            return position.end or "earliest"
        return json.dumps(self._beginning())

    def _beginning(self) -> Positions:
        position, strict = Position.of(self._source.start or "earliest"), self._source.on_data_loss == "fail"
        return begin_at(position, self._there, self._connection, self._user, strict=strict)

    def parsed(self, rows: DataFrame, column: str) -> Parsed:
        """Values of records, wherever they are, as columns."""
        from pyspark.sql import functions as F

        value = F.col(column)
        if self.payload_format == "raw_bytes":
            return Parsed(rows, {"value": value}, F.lit(False), F.lit(None).cast("string"))
        if self._registry is not None:
            if self.envelopes:
                texts = envelope_texts(rows, column, _TEXT, self._registry)
                found = json_text(texts, _TEXT, self.payload_schema.fields)
                return replace(found, wrong=F.col(PROBLEM).isNotNull() | found.wrong, message=F.col(PROBLEM))
            if self.payload_format == "avro":
                text = self._reader.text if self._reader else None
                return avro_columns(rows, column, self.payload_schema, self._registry, text)
            id = self._reader.id if self._reader else None
            return protobuf_columns(rows, column, self.payload_schema, self._registry, id)
        content, wrong, why = value, value.isNull(), F.when(value.isNull(), F.lit(_TOMBSTONE))
        if self.payload_format == "json_schema":
            content = F.substring(value, HEADER_BYTES + 1, _LONGEST)
            headless = ~value.startswith(F.lit(MAGIC))
            wrong, why = wrong | headless, why.when(headless, F.lit(_HEADLESS))
            if self._schemas is not None:
                rows = rows.withColumn(_HEADER, unnamed_schema(value, self._schemas))
                wrong, why = wrong | F.col(_HEADER).isNotNull(), why.when(F.col(_HEADER).isNotNull(), F.col(_HEADER))
        fields = self.payload_schema.fields
        # What others have left of a batch is not plain.
        is_plain = AHEAD not in rows.columns and self._has_backlog()
        plain = plain_objects(content, fields) if is_plain else None
        found = json_text(rows.withColumn(_TEXT, content.cast("string")), _TEXT, fields, plain)
        return replace(found, wrong=wrong | found.wrong, message=why.otherwise(found.message))

    def _has_backlog(self) -> bool:
        done = self._notes.next()
        read = {(topic, number): offset for topic, of in done.items() for number, offset in of.items()}
        waiting = (
            high - max(low, read.get((topic, number), low))
            for topic, of in self._there.items()
            for number, (low, high) in of.items()
        )
        return sum(waiting) >= _BACKLOG

    def beside_of_letters(self, position: Column, record: Column, arrived: Column) -> Mapping[str, Column]:
        """What is still known of a record when it comes back as a dead letter."""
        from pyspark.sql import functions as F

        place = F.split(position, "/")
        return {
            "_key": record["key"],
            "_headers": record["headers"],
            "_topic": place[0],
            "_partition": place[1].cast("int"),
            "_offset": place[2].cast("long"),
            "_timestamp": F.coalesce(record["timestamp"], arrived),
        }

    def _fixed(self, name: str, there: Mapping[str, Any], session: SparkSession) -> StructType:
        """Declared, or inferred from the oldest records at the first start."""

        if self.payload_format == "raw_bytes":
            return declared_schema(_RAW, name)
        if self._source.schema is None and self._registry is not None:
            self._reader = self._reader_schema(name, there)
            if self.payload_format == "avro":
                return avro.spark_schema(self._reader.text)
            return protobuf.spark_schema(first_message(self._registry, self._reader.id))
        if (known := known_schema(self._source, name, self._store)) is not None:
            return known
        skipped = HEADER_BYTES if self.payload_format == "json_schema" else 0
        values = [value[skipped:] for message in self._sampled(there) if (value := message.value())]
        schema = _inferred(values, self._store, session, self._user)
        fix_schema(schema, name, self._store)
        return schema

    def _reader_schema(self, name: str, there: Mapping[str, Any]) -> Schema:
        """The newest one of the topic at the first start; all records are read as this one from then on."""
        assert self._registry is not None
        memory = f"{self.payload_format}.{file_name(name)}.json"
        if known := self._store.recall(memory):
            return Schema(**json.loads(known))
        for topic in sorted(there):
            if found := self._registry.latest(self._registry.subject_of(topic)):
                self._store.remember(memory, json.dumps({"id": found.id, "text": found.text, "kind": found.kind}))
                return found
        subjects = ", ".join(self._registry.subject_of(topic) for topic in sorted(there)) or "no topic yet"
        raise NothingToInfer(
            f"{self._user}: the registry has no schema yet of {subjects}",
            next_step="register one, or declare the columns with `schema`",
        )

    def _records_per_batch(self, batch_bytes: int | None, there: Mapping[str, Any]) -> int | None:
        """Spark limits a batch by records; bytes are turned into records with the sizes of the oldest ones."""
        limits = [] if self._source.max_rows_per_batch is None else [self._source.max_rows_per_batch]
        if batch_bytes is not None:
            sizes = [len(message) + len(message.key() or b"") for message in self._sampled(there)]
            average = sum(sizes) / len(sizes) if sizes else _GUESSED_BYTES
            limits.append(max(1, round(batch_bytes / max(1.0, average))))
        return min(limits, default=None)

    def _sampled(self, there: Mapping[str, Any]) -> list[Message]:
        if self._sample is None:
            self._sample = sample(self._connection, there)
        return self._sample


def _between(begins: Positions, ends: Positions) -> int:
    return sum(end - begins.get(topic, {}).get(n, 0) for topic, of in ends.items() for n, end in of.items())


def _is_before(ends: Positions) -> Column:
    """Of partitions that came later, nothing is."""
    from pyspark.sql import functions as F

    inside = F.lit(False)
    for topic, of in ends.items():
        for number, end in of.items():
            inside |= (F.col("topic") == topic) & (F.col("partition") == number) & (F.col("offset") < end)
    return inside


def _wanted(carried: Carried) -> list[str]:
    """What is needed of a record that is left to Spark, because all of it goes through Python."""
    named = {name[1:] for name in carried.named}
    wanted = {VALUE} | (named & {*_BESIDE})
    wanted |= {"topic", "partition", "offset"} if carried.position or carried.number else set()
    wanted |= {"topic", "partition"} if carried.part else set()
    wanted |= {"key"} if carried.key else set()
    is_timed = carried.time or carried.position or carried.payload or carried.key
    return sorted(wanted | ({TIMESTAMP} if is_timed else set()))


def _number(topics: Subscription) -> Column:
    """Of its own, and growing within a partition: 40 bits of offset, 14 of partition, the rest is the topic."""
    from pyspark.sql import functions as F

    if topics.is_pattern:
        return F.xxhash64("topic", "partition", "offset")
    which = F.lit(1)
    if len(topics.names) > 1:
        which = F.array_position(F.array(*map(F.lit, sorted(topics.names))), F.col("topic"))
    return which * (1 << 54) + F.col("partition") * F.lit(1 << 40) + F.col("offset")


def _inferred(texts: list[bytes], store: Store, session: SparkSession, user: str) -> StructType:
    from pyspark.sql.types import StructType

    if not texts:
        raise NothingToInfer(
            f"{user}: there is no record yet to infer the columns from",
            next_step='declare them, for example schema = "id long, amount double, ts timestamp", or send a record',
        )
    file = store.scratch("inferring") / "records.jsonl"
    # A line feed in JSON is a space; inside of a text it would be escaped.
    file.write_bytes(b"".join(text.replace(b"\n", b" ").replace(b"\r", b" ") + b"\n" for text in texts))
    inferred = infer_json(telling_case(session).read, [str(file)])
    schema = StructType([field for field in inferred.fields if field.name != "_corrupt_record"])
    if not schema.fields:
        raise NoColumns(
            f"{user}: not one of {len(texts)} records could be read as JSON",
            next_step='declare the columns, for example schema = "id long, ts timestamp", or correct payload_format',
        )
    return schema

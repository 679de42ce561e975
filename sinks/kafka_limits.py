"""How large a record may be: its topic says it, of a batch of records, and so of one that is alone in its batch."""

from __future__ import annotations

import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from ematix_flow.connections import KafkaConnection
from ematix_flow.errors import FlowError
from ematix_flow.sinks.kafka_client import librdkafka_properties, opened

if TYPE_CHECKING:
    from pyspark.sql import Column

SIZE = "_flow_size"
"""Hidden column of records: the bytes of each alone in its batch."""
UNKNOWN = 1 << 40
"""More than any topic takes."""

_SETTING = "max.message.bytes"
_SECONDS = 5.0
_POLL_SECONDS = 0.02
_BATCH, _ATTRIBUTES, _DELTAS, _HEADER_COUNT = 61, 1, 2, 1
MOST_BESIDE = 100
"""What key and value have around them at the most, if there are no headers."""


def limits(connection: KafkaConnection, topics: Collection[str]) -> dict[str, int]:
    """Of topics, those that the cluster tells us. It need not: without an answer, nothing is known of a topic, and it
    is the broker that refuses."""
    if not topics:
        return {}
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, ConfigResource  # type: ignore[attr-defined]

    try:
        admin = opened(AdminClient, librdkafka_properties(connection))
        asked = admin.describe_configs(
            [ConfigResource(ConfigResource.Type.TOPIC, name) for name in topics], request_timeout=_SECONDS
        )
    except (KafkaException, FlowError):
        return {}
    deadline = time.monotonic() + _SECONDS
    while not all(answer.done() for answer in asked.values()) and time.monotonic() < deadline:
        admin.poll(_POLL_SECONDS)
    return {
        resource.name: int(answer.result()[_SETTING].value)
        for resource, answer in asked.items()
        if answer.done() and answer.exception() is None
    }


def size(key: Column, value: Column, headers: Column | None) -> Column:
    """Kafka's own sum, for records that are not compressed."""
    from pyspark.sql import functions as F

    inside = F.lit(_ATTRIBUTES + _DELTAS + _HEADER_COUNT) + _field(key) + _field(value)
    if headers is not None:
        sizes = F.transform(headers, lambda one: _field(one["key"].cast("binary")) + _field(one["value"]))
        inside += F.coalesce(F.aggregate(sizes, F.lit(0).cast("bigint"), lambda all_, one: all_ + one), F.lit(0))
    return F.lit(_BATCH) + _number(inside) + inside


def _field(content: Column) -> Column:
    """With its length before it."""
    from pyspark.sql import functions as F

    length = F.coalesce(F.length(content), F.lit(0)).cast("bigint")
    return _number(length) + length


def _number(value: Column) -> Column:
    """The bytes of a number that is written with seven bits in each, one of which is for the sign."""
    from pyspark.sql import functions as F

    more = (F.when(value >= 1 << bits, 1).otherwise(0) for bits in (6, 13, 20, 27))
    return sum(more, F.lit(1))

"""Transactions of the source: which change is of which, and which of them have come whole.

Debezium writes a BEGIN and an END for each transaction into a topic of their own, in this order, and the number of its
changes into the END. Changes come from other topics, so that an END may come before some of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ematix_flow.cdc.envelopes import Envelope
from ematix_flow.specs import CDC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

TRANSACTION = "_flow_transaction"
"""Column of changes: the id of their transaction; NULL where there is none to wait for."""
PLACE = "_flow_place_in_transaction"
"""Column of changes: their number in it."""
NEWS = "_flow_news"
"""Column of changes: BEGIN or END, where the record is no change but news of the transaction."""
COUNT = "_flow_count"
"""Column of changes: at the end of a transaction, how many changes it has."""
ALONE = "_flow_alone"
"""Column of changes: whether one that was logged names no transaction."""
BEGUN, FIRST, SEEN = "begun", "first", "seen"
COLUMNS = (TRANSACTION, PLACE, NEWS, COUNT, ALONE)
_LOGGED = ("c", "u", "d", "t")
_COUNTS = "array<struct<data_collection: string, event_count: bigint>>"

IS_OPEN = f"{COUNT} IS NULL OR ({BEGUN} AND {SEEN} < {COUNT})"
"""Of a transaction: some of its changes are still to come. If its end is known and its beginning is not, they came
before what the source still has, or were applied long ago, and are not sent again."""
IS_HALF = f"{COUNT} IS NOT NULL AND NOT {BEGUN}"
"""Of a transaction: only its end is known."""


def transaction_columns(envelope: Envelope, cdc: CDC, table: Column) -> list[Column]:
    """`COLUMNS`, if they are needed."""
    from pyspark.sql import functions as F

    of = envelope.transaction
    if of is None:
        return []
    op, id = F.expr(envelope.op), F.expr(of.id)
    news = F.when(op.isNull() & F.expr(of.status).isin("BEGIN", "END"), F.expr(of.status))
    counted = F.expr(f"try_cast({of.count} AS BIGINT)")
    awaited = id
    if cdc.tables is not None and cdc.unlisted != "create":
        # The topics of other tables need not be read.
        counts = F.from_json(F.expr(of.counts), _COUNTS)
        own = F.filter(counts, lambda one: _is_listed(one["data_collection"], list(cdc.tables or ())))
        total = F.aggregate(own, F.lit(0).cast("long"), lambda so_far, one: so_far + one["event_count"])
        counted = F.coalesce(total, counted)
        awaited = F.when(table.isin(*cdc.tables), id)
    return [
        F.coalesce(awaited, F.when(news.isNotNull(), F.expr(of.news_of))).alias(TRANSACTION),
        F.when(op.isNotNull(), F.expr(f"try_cast({of.order} AS BIGINT)")).alias(PLACE),
        news.alias(NEWS),
        F.when(news == "END", counted).alias(COUNT),
        (op.isin(*_LOGGED) & id.isNull()).alias(ALONE),
    ]


def _is_listed(name: Column, listed: Sequence[str]) -> Column:
    """One of the two may say more of where the table is."""
    from pyspark.sql import functions as F

    found = name.isin(*listed)
    for one in listed:
        found |= name.endswith(f".{one}") | F.lit(one).endswith(F.concat(F.lit("."), name))
    return found


def said_by(changes: DataFrame, number: int) -> DataFrame:
    """What the changes of batch `number` say of their transactions; `seen` counts those that came twice once."""
    from pyspark.sql import functions as F

    return changes.where(f"{TRANSACTION} IS NOT NULL").select(
        TRANSACTION, PLACE, (F.col(NEWS) == "BEGIN").alias(BEGUN), COUNT, F.lit(number).cast("long").alias(FIRST)
    )


def summed_up(said: DataFrame) -> DataFrame:
    """One row per transaction."""
    from pyspark.sql import functions as F

    return said.groupBy(TRANSACTION).agg(
        F.coalesce(F.bool_or(BEGUN), F.lit(False)).alias(BEGUN),
        F.max(COUNT).alias(COUNT),
        F.min(FIRST).alias(FIRST),
        F.count_distinct(PLACE).alias(SEEN),
    )

"""Transactions of the source: which change is of which, and which of them have come whole.

Debezium writes a BEGIN and an END for each transaction into a topic of their own, in this order, and the number of its
changes into the END. Changes come from other topics, so that an END may come before some of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
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
_BEGUN, _SEEN = "begun", "seen"
COLUMNS = (TRANSACTION, PLACE, NEWS, COUNT, ALONE)
FEW = 1_000
"""So many ids are compared one by one; a join would cost more."""
_LOGGED = ("c", "u", "d", "t")
_COUNTS = "array<struct<data_collection: string, event_count: bigint>>"


@dataclass(frozen=True)
class Transaction:
    """What is known of one after a batch."""

    id: str
    begun: bool = False
    """Its BEGIN has come."""
    count: int | None = None
    """How many changes it has, once its END has come."""
    first: int = 0
    """The batch in which it was heard of first."""
    seen: int = 0
    """Its changes so far; one that came twice counts once."""

    @property
    def is_open(self) -> bool:
        """Some of its changes are still to come. If its end is known and its beginning is not, they came before what
        the source still has, or were applied long ago, and are not sent again."""
        return self.count is None or (self.begun and self.seen < self.count)

    @property
    def is_half(self) -> bool:
        """Only its end is known."""
        return self.count is not None and not self.begun

    def then(self, later: Transaction) -> Transaction:
        """With what a later batch says of it, which counts the changes anew."""
        count = self.count if later.count is None else later.count
        return Transaction(self.id, self.begun or later.begun, count, min(self.first, later.first), later.seen)

    def __str__(self) -> str:
        return f"{self.id}: {self.seen:,} changes of {'an unknown number' if self.count is None else f'{self.count:,}'}"


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


def told(
    changes: DataFrame, waiting: DataFrame | None, known: Mapping[str, Transaction], number: int
) -> Iterator[Transaction]:
    """Of those transactions of batch `number` that are not complete with it alone, and of those that were known."""
    from pyspark.sql import functions as F

    said = changes.where(f"{TRANSACTION} IS NOT NULL").select(
        TRANSACTION, PLACE, (F.col(NEWS) == "BEGIN").alias(_BEGUN), COUNT
    )
    if waiting is not None:
        nothing = [F.lit(False).alias(_BEGUN), F.lit(None).cast("long").alias(COUNT)]
        said = said.unionByName(waiting.select(TRANSACTION, PLACE, *nothing))
    sums = said.groupBy(TRANSACTION).agg(
        F.coalesce(F.bool_or(_BEGUN), F.lit(False)).alias(_BEGUN),
        F.max(COUNT).alias(COUNT),
        F.count_distinct(PLACE).alias(_SEEN),
    )
    if len(known) <= FEW:
        on_its_own = F.coalesce(F.col(_BEGUN) & (F.col(_SEEN) >= F.col(COUNT)), F.lit(False))
        sums = sums.where(~on_its_own | F.col(TRANSACTION).isin(*known)) if known else sums.where(~on_its_own)
    for id, begun, count, seen in sums.collect():
        yield Transaction(id, begun, count, number, seen)


def of_these(rows: DataFrame, transactions: Collection[str], *, wanted: bool = True) -> DataFrame:
    """The changes that are of some transactions, or those that are not."""
    from pyspark.sql import functions as F

    if len(transactions) > FEW:
        ids = rows.sparkSession.createDataFrame([(id,) for id in transactions], f"{TRANSACTION} string")
        return rows.join(F.broadcast(ids), TRANSACTION, "left_semi" if wanted else "left_anti").select(*rows.columns)
    if not transactions:
        return rows.where("false") if wanted else rows
    among = F.coalesce(F.col(TRANSACTION).isin(*transactions), F.lit(False))
    return rows.where(among if wanted else ~among)

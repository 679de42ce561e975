"""Changes of transactions that are not complete, held back beside the checkpoint and saved with it.

What batch N leaves open is in two files: `N.open.parquet`, the open transactions, and `N.rows.parquet`, those changes
of them that came with this batch. So a repeated batch finds what it found the first time, one can go back to any batch
that Spark still knows, and a long transaction is not written again with each batch that it waits for.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.cdc.transactions import (
    ALONE,
    BEGUN,
    COLUMNS,
    COUNT,
    FIRST,
    IS_HALF,
    IS_OPEN,
    NEWS,
    PLACE,
    SEEN,
    TRANSACTION,
    said_by,
    summed_up,
)
from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import ORDER, ROW
from ematix_flow.specs import CDC
from ematix_flow.state import durable
from ematix_flow.state.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

_log = logging.getLogger(__name__)
_NOTE = "transactions.json"
_IS_OPEN = "open"
# Of transactions of which only the end came: one for each time that a connector began in the middle of one.
_MOST_HALVES = 1_000
_NEGATIVE = -(2**63)
_READ_IT = (
    "add the topic in which Debezium tells of transactions to `query` of the source; it is <topic.prefix>.transaction "
    "unless Debezium's topic.transaction says otherwise"
)


class NoTransactions(FlowError):
    """The declaration asks for whole transactions, and the source does not tell where one ends."""

    code = "no-transactions"


@dataclass(frozen=True)
class Held:
    """What a batch leaves open."""

    transactions: int = 0
    changes: int = 0
    oldest: str = ""
    """One that has waited longest, in words."""


class HeldBack:
    """Between the changes that a batch brings and those that it applies."""

    def __init__(self, cdc: CDC, store: Store) -> None:
        self._cdc, self._store = cdc, store
        self._warned = False
        self.held = Held()

    def released(self, changes: DataFrame, number: int) -> DataFrame:
        """The changes to apply in this batch: those of transactions that are complete now, and of none."""
        from pyspark.sql import functions as F

        self._forget(number)
        before = self._open_after(number - 1)
        if not self._cdc.transactional and before is None:
            return changes
        # Those that come later had no neighbours to be ordered by.
        changes = changes.withColumn(ORDER, F.struct(F.col(ORDER), F.col(ROW)))
        waiting = None if before is None else self._waiting(before, changes, number)
        if not self._cdc.transactional:
            self.held = Held()
            return changes if waiting is None else changes.unionByName(waiting.drop(TRANSACTION))
        self._ask_for_transactions(changes)
        if waiting is not None and not self._warned and not self._known().get("news"):
            self._warned = True
            _log.warning("no transaction ever ended", extra={"pipeline": self._store.pipeline, "next_step": _READ_IT})
        kept = self._kept(changes, waiting, before, number)
        still = kept.filter(kept[_IS_OPEN])
        # The news of a transaction change nothing, and are done with.
        changes = changes.withColumn(TRANSACTION, F.when(F.col(NEWS).isNull(), F.col(TRANSACTION)))
        self._hold(changes, kept, still, number)
        self.held = _told(still)
        released = changes if waiting is None else changes.unionByName(waiting)
        if len(still):
            released = released.join(_ids(still, changes), TRANSACTION, "left_anti").select(*changes.columns)
        return released.drop(*COLUMNS)

    def at_the_end(self, pipeline: str) -> None:
        """Of a run that has read all of its input."""
        if not self.held.transactions:
            return
        words = f"{self.held.changes:,} changes of {self.held.transactions:,} transactions"
        if not self._known().get("news"):
            raise NoTransactions(
                f"{words} are held back, and no BEGIN or END of a transaction ever came",
                next_step=f"{_READ_IT}. What is held back is applied as soon as the ends have come",
            )
        facts = {"pipeline": pipeline, "transactions": self.held.transactions, "changes": self.held.changes}
        _log.warning("transactions are not complete", extra={**facts, "oldest": self.held.oldest})

    def _ask_for_transactions(self, changes: DataFrame) -> None:
        """Until some were seen."""
        from pyspark.sql import functions as F

        known = self._known()
        if known.get("named") and known.get("news"):
            return
        is_change = F.col(NEWS).isNull() & F.col(TRANSACTION).isNotNull()
        found = changes.agg(*[F.coalesce(F.bool_or(one), F.lit(False)) for one in (is_change, F.col(NEWS).isNotNull())])
        named, news = (bool(one) for one in found.collect()[0])
        now = {"named": named or known.get("named", False), "news": news or known.get("news", False)}
        if not any(now.values()) and changes.agg(F.bool_or(ALONE)).collect()[0][0]:
            raise NoTransactions(
                "the changes do not say which transaction they are of, and transactional is true",
                next_step="set provide.transaction.metadata = true in Debezium, and let the source read its "
                "transaction topic, too. Changes that were written before that are read without transactional",
            )
        if now != known:
            self._store.remember(_NOTE, json.dumps(now))

    def _known(self) -> dict[str, bool]:
        return dict(json.loads(self._store.recall(_NOTE) or "{}"))

    def _kept(self, changes: DataFrame, waiting: DataFrame | None, before: pa.Table | None, number: int) -> pa.Table:
        """Transactions of which something is to be remembered."""
        from pyspark.sql import functions as F

        said = said_by(changes, number)
        if waiting is not None:
            nothing = {BEGUN: F.lit(False), COUNT: F.lit(None).cast("long"), FIRST: F.lit(number).cast("long")}
            places = [waiting[TRANSACTION], waiting[PLACE], *(value.alias(name) for name, value in nothing.items())]
            said = said.unionByName(waiting.select(*places))
        if before is not None:
            known = changes.sparkSession.createDataFrame(before.select([TRANSACTION, BEGUN, COUNT, FIRST]))
            said = said.unionByName(known.withColumn(PLACE, F.lit(None).cast("long")))
        found = summed_up(said).withColumn(_IS_OPEN, F.expr(IS_OPEN)).where(f"{_IS_OPEN} OR ({IS_HALF})").toArrow()
        return _without_old_halves(found)

    def _hold(self, changes: DataFrame, kept: pa.Table, still: pa.Table, number: int) -> None:
        """Write down what this batch leaves, before it is saved."""
        import pyarrow.parquet as pq
        from pyspark.sql import functions as F

        if not len(kept):
            return
        durable.make(self._store.held)
        if len(still):
            fresh = changes.join(_ids(still, changes), TRANSACTION, "left_semi")
            # Not the number of any row of the batch in which it is released.
            own = F.xxhash64(F.lit(number), F.col(ROW)).bitwiseOR(F.lit(_NEGATIVE))
            folder = self._store.scratch("held") / "rows"
            fresh.withColumn(ROW, own).repartition(1).write.parquet(str(folder))
            for part in folder.glob("*.parquet"):
                part.replace(self._rows_of(number))
        draft = self._store.scratch("held") / "open.parquet"
        pq.write_table(kept, draft)
        draft.replace(self._open_of(number))

    def _waiting(self, before: pa.Table, changes: DataFrame, number: int) -> DataFrame | None:
        """The changes that are held back, as earlier batches have written them."""
        from pyspark.sql.types import StringType, StructType

        before = before.filter(before[_IS_OPEN])
        first = min(before[FIRST].to_pylist(), default=number)
        files = [str(file) for n in range(first, number) if (file := self._rows_of(n)).exists()]
        if not files:
            return None
        schema = StructType([*changes.schema.fields])
        if TRANSACTION not in changes.columns:
            schema = schema.add(TRANSACTION, StringType())
        rows = changes.sparkSession.read.schema(schema).parquet(*files)
        return rows.join(_ids(before, changes), TRANSACTION, "left_semi").select(*schema.names)

    def _forget(self, number: int) -> None:
        """What an earlier try of the batch has left, and what no batch needs to which one can go back."""
        if not self._store.held.exists():
            return
        oldest = min((int(plan.name) for plan in (self._store.checkpoint / "offsets").glob("[0-9]*")), default=0)
        then = self._open_after(oldest)
        needed = min([oldest, *([] if then is None else then[FIRST].to_pylist())])
        for file in self._store.held.iterdir():
            if not file.name.startswith(".") and not needed <= int(file.name.partition(".")[0]) != number:
                file.unlink()

    def _open_after(self, number: int) -> pa.Table | None:
        import pyarrow.parquet as pq

        file = self._open_of(number)
        return pq.read_table(file) if file.exists() else None

    def _open_of(self, number: int) -> Path:
        return self._store.held / f"{number}.open.parquet"

    def _rows_of(self, number: int) -> Path:
        return self._store.held / f"{number}.rows.parquet"


def _ids(transactions: pa.Table, beside: DataFrame) -> DataFrame:
    from pyspark.sql import functions as F

    session: SparkSession = beside.sparkSession
    return F.broadcast(session.createDataFrame(transactions.select([TRANSACTION])))


def _without_old_halves(found: pa.Table) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    halves = found.filter(pc.invert(found[_IS_OPEN])).sort_by([(FIRST, "descending")]).slice(0, _MOST_HALVES)
    return pa.concat_tables([found.filter(found[_IS_OPEN]), halves])


def _told(still: pa.Table) -> Held:
    if not len(still):
        return Held()
    oldest = still.sort_by([(FIRST, "ascending"), (TRANSACTION, "ascending")]).slice(0, 1).to_pylist()[0]
    of = "an unknown number" if oldest[COUNT] is None else f"{oldest[COUNT]:,}"
    words = f"{oldest[TRANSACTION]}: {oldest[SEEN]:,} changes of {of}"
    return Held(len(still), sum(still[SEEN].to_pylist()), words)

"""Changes of transactions that are not complete, held back beside the checkpoint and saved with it.

What batch N leaves open is in two files: `N.open.json`, the open transactions, and `N.rows.parquet`, those changes of
them that came with this batch. So a repeated batch finds what it found the first time, one can go back to any batch
that Spark still knows, and a long transaction is not written again with each batch that it waits for.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.cdc.transactions import ALONE, COLUMNS, NEWS, TRANSACTION, Transaction, of_these, told
from ematix_flow.errors import FlowError
from ematix_flow.sinks.base import ORDER, ROW
from ematix_flow.specs import CDC
from ematix_flow.state import durable
from ematix_flow.state.store import Store

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_log = logging.getLogger(__name__)
_NOTE = "transactions.json"
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

    @classmethod
    def of(cls, still: Collection[Transaction]) -> Held:
        oldest = min(still, key=lambda one: (one.first, one.id), default="")
        return cls(len(still), sum(one.seen for one in still), str(oldest))


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
        before = self._known_after(number - 1)
        if not self._cdc.transactional and not before:
            return changes
        # Those that come later had no neighbours to be ordered by.
        changes = changes.withColumn(ORDER, F.struct(F.col(ORDER), F.col(ROW)))
        waiting = self._waiting(before, changes, number)
        if not self._cdc.transactional:
            self.held = Held()
            return changes if waiting is None else changes.unionByName(waiting.drop(TRANSACTION))
        self._ask_for_transactions(changes, waiting)
        known = {one.id: one for one in before}
        now = known | {one.id: known.get(one.id, one).then(one) for one in told(changes, waiting, known, number)}
        still = [one for one in now.values() if one.is_open]
        halves = sorted((one for one in now.values() if one.is_half), key=lambda one: -one.first)[:_MOST_HALVES]
        # The news of a transaction change nothing, and are done with.
        changes = changes.withColumn(TRANSACTION, F.when(F.col(NEWS).isNull(), F.col(TRANSACTION)))
        ids = [one.id for one in still]
        self._hold(of_these(changes, ids), [*still, *halves], number)
        self.held = Held.of(still)
        everything = changes if waiting is None else changes.unionByName(waiting)
        return of_these(everything, ids, wanted=False).drop(*COLUMNS)

    def at_the_end(self, pipeline: str) -> None:
        """Of a run that has read all of its input."""
        if not self.held.transactions:
            return
        words = f"{_counted(self.held.changes, 'change')} of {_counted(self.held.transactions, 'transaction')}"
        if not self._known().get("news"):
            raise NoTransactions(
                f"{words} held back, and no BEGIN or END of a transaction ever came",
                next_step=f"{_READ_IT}. What is held back is applied as soon as the ends have come",
            )
        facts = {"pipeline": pipeline, "transactions": self.held.transactions, "changes": self.held.changes}
        _log.warning("transactions are not complete", extra={**facts, "oldest": self.held.oldest})

    def _ask_for_transactions(self, changes: DataFrame, waiting: DataFrame | None) -> None:
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
        if waiting is not None and not now["news"] and not self._warned:
            self._warned = True
            _log.warning("no transaction ever ended", extra={"pipeline": self._store.pipeline, "next_step": _READ_IT})

    def _known(self) -> dict[str, bool]:
        return dict(json.loads(self._store.recall(_NOTE) or "{}"))

    def _hold(self, fresh: DataFrame, kept: Sequence[Transaction], number: int) -> None:
        """Write down what this batch leaves, before it is saved."""
        from pyspark.sql import functions as F

        if not kept:
            return
        durable.make(self._store.held)
        if any(one.is_open and one.seen for one in kept):
            # Not the number of any row of the batch in which it is released.
            own = F.xxhash64(F.lit(number), F.col(ROW)).bitwiseOR(F.lit(_NEGATIVE))
            folder = self._store.scratch("held") / "rows"
            fresh.withColumn(ROW, own).coalesce(1).write.parquet(str(folder))
            for part in folder.glob("*.parquet"):
                part.replace(self._rows_of(number))
        durable.write(self._open_of(number), json.dumps([astuple(one) for one in kept]))

    def _waiting(self, before: Collection[Transaction], changes: DataFrame, number: int) -> DataFrame | None:
        """The changes that are held back, as earlier batches have written them."""
        from pyspark.sql.types import StringType, StructType

        open = [one for one in before if one.is_open and one.seen]
        first = min((one.first for one in open), default=number)
        files = [str(file) for n in range(first, number) if (file := self._rows_of(n)).exists()]
        if not files:
            return None
        schema = StructType([*changes.schema.fields])
        if TRANSACTION not in changes.columns:
            schema = schema.add(TRANSACTION, StringType())
        rows = changes.sparkSession.read.schema(schema).parquet(*files)
        return of_these(rows, [one.id for one in open])

    def _forget(self, number: int) -> None:
        """What an earlier try of the batch has left, and what no batch needs to which one can go back."""
        if not self._store.held.exists():
            return
        oldest = min((int(plan.name) for plan in (self._store.checkpoint / "offsets").glob("[0-9]*")), default=0)
        needed = min([oldest, *(one.first for one in self._known_after(oldest) if one.is_open)])
        for file in self._store.held.iterdir():
            if not file.name.startswith(".") and not needed <= int(file.name.partition(".")[0]) != number:
                file.unlink()

    def _known_after(self, number: int) -> list[Transaction]:
        file = self._open_of(number)
        return [Transaction(*one) for one in json.loads(file.read_bytes())] if file.exists() else []

    def _open_of(self, number: int) -> Path:
        return self._store.held / f"{number}.open.json"

    def _rows_of(self, number: int) -> Path:
        return self._store.held / f"{number}.rows.parquet"


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"

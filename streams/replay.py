"""Dead letters once more through their pipeline: the same decoding, transform, targets and guarantees.

A replay is a bounded run whose source is its inbox. It has a checkpoint, a lock and fences of its own, so that it runs
beside the pipeline; a letter that fails again stays a letter, whatever `on_error` says by now.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.errors import UsageError
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.dead_letters import PARKED, PENDING, Which
from ematix_flow.state.rewinding import begin
from ematix_flow.state.store import ReplayStore
from ematix_flow.state.swap import NEW
from ematix_flow.streams.change_tables import one_by_one
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.streams.sources.kafka_again import with_records
from ematix_flow.streams.sources.letters import open_letters, spool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# A note beside the checkpoint, saved with the plan of the batch: which letters it is about.
_SPOOLED = "spooled"


@dataclass(frozen=True)
class ReplayResult:
    pipeline: str
    status: str = "success"
    """`success`, or `stopped` if it was told to stop; then the next replay goes on."""
    replayed: int = 0
    succeeded: int = 0
    failed_again: int = 0
    parked: int = 0
    """Of those that failed again, those that only a replay by id tries once more."""


def replay(
    spec: PipelineSpec,
    *,
    ids: Sequence[str] | None = None,
    stage: str | None = None,
    limit: int | None = None,
    spark: SparkSession | None = None,
    on_batch: Callable[[BatchReport], None] = lambda _: None,
    stop: threading.Event | None = None,
) -> ReplayResult:
    """Replay the pending letters, those of a `stage`, the oldest `limit`; or those of `ids`, parked ones, too.

    Letters of a replay whose process died are taken up first.
    """
    if spec.transform.window is not None or spec.transform.join is not None:
        where = "windows" if spec.transform.window is not None else "a join"
        raise UsageError(
            f"the rows of {spec.name} go into {where}, and a letter that is replayed would not meet the rows that it "
            "belongs to: they are in the state of the pipeline, or gone",
            next_step="correct the rows and let them arrive as new input; `flow dlq show ID` has their bytes. For rows "
            'that come late, raise lateness_ms, or take late_data = "reopen"',
        )
    transform = spec.transform.model_copy(update={"on_error": "dlq"})
    # Letters are missing rows of what is there, not a new content.
    added = [t.model_copy(update={"mode": "append"}) if t.mode == "truncate" else t for t in spec.targets]
    spec = one_by_one(spec.model_copy(update={"transform": transform, "targets": tuple(added)}))
    statuses = (PENDING,) if ids is None else (PENDING, PARKED)
    # What fails from now on has had its turn.
    which = Which(statuses, stage=stage, before=datetime.now(UTC), ids=None if ids is None else tuple(ids), limit=limit)
    status = "success"
    with closing(ReplayStore(spec)) as store:

        def run(name: str) -> str:
            _fill_inbox(store, name, spec)
            result = run_spec(
                spec, bounded=True, spark=spark, on_batch=on_batch, stop=stop, store=store, opening=open_letters
            )
            if result.status == "success":
                store.finish()
            return result.status

        begun, new = _begun(store), uuid.uuid4().hex
        if begun is not None:
            status = run(begun)
        if status == "success" and store.dead_letters.lease(which, new):
            status = run(new)
        settled = store.settled
    done = settled.succeeded + settled.failed_again
    return ReplayResult(spec.name, status, done, settled.succeeded, settled.failed_again, settled.parked)


def _begun(store: ReplayStore) -> str | None:
    """The replay that is not finished, if there is one: a process may have died in it at any point, here or on a
    machine that is gone. A batch that was planned is repeated, although all of its letters may be settled by now."""
    noted = store.recall(_SPOOLED)
    last = max((int(plan.name) for plan in (store.checkpoint / "offsets").glob("[0-9]*")), default=None)
    unfinished = noted is not None and last is not None and not store.committed(last)
    if noted is not None and Path(noted).parent != store.inbox:
        if unfinished:
            raise _begun_elsewhere(store, Path(noted).parent)
        # Spark would look where the letters of earlier replays were, although it is done with them.
        store.adopt(begin(store.folder / NEW))
    return Path(noted).stem if noted and unfinished else store.dead_letters.open_replay()


def _begun_elsewhere(store: ReplayStore, inbox: Path) -> UsageError:
    return UsageError(
        f"{store.pipeline} is not finished, and was begun with its letters in {inbox}; here they are in {store.inbox}",
        next_step="set EMATIX_FLOW_HOME to what it was there, an empty folder will do, and `flow dlq replay` goes on",
    )


def _fill_inbox(store: ReplayStore, name: str, spec: PipelineSpec) -> None:
    """With the letters that this replay still has in hand, and no others."""
    spooled = store.spool(name)
    for other in store.inbox.iterdir():
        if other != spooled:
            other.unlink()
    if not spooled.exists():
        spool(with_records(store.dead_letters.leased(name), spec), spooled, spec)
    store.remember(_SPOOLED, str(spooled))

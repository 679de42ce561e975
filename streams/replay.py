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
from typing import TYPE_CHECKING

from ematix_flow.specs import PipelineSpec
from ematix_flow.state.dead_letters import PARKED, PENDING, Which
from ematix_flow.state.store import ReplayStore, open_replay_store
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.streams.sources.letters import open_letters, spool

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


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
    transform = spec.transform.model_copy(update={"on_error": "dlq"})
    # Letters are missing rows of what is there, not a new content.
    added = [t.model_copy(update={"mode": "append"}) if t.mode == "truncate" else t for t in spec.targets]
    spec = spec.model_copy(update={"transform": transform, "targets": tuple(added)})
    statuses = (PENDING,) if ids is None else (PENDING, PARKED)
    # What fails from now on has had its turn.
    which = Which(statuses, stage=stage, before=datetime.now(UTC), ids=None if ids is None else tuple(ids), limit=limit)
    status = "success"
    with closing(open_replay_store(spec)) as store:

        def run() -> str:
            _fill_inbox(store)
            result = run_spec(
                spec, bounded=True, spark=spark, on_batch=on_batch, stop=stop, store=store, opening=open_letters
            )
            if result.status == "success":
                store.finish()
            return result.status

        if store.replay is not None:
            status = run()
        if status == "success" and store.dead_letters.lease(which, uuid.uuid4().hex):
            status = run()
        settled = store.settled
    done = settled.succeeded + settled.failed_again
    return ReplayResult(spec.name, status, done, settled.succeeded, settled.failed_again, settled.parked)


def _fill_inbox(store: ReplayStore) -> None:
    name = store.replay
    assert name is not None
    if not store.spool(name).exists():
        spool(store.dead_letters.leased(name), store.spool(name))

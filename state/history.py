"""Run history: a small document for each run of a pipeline, kept where its state is. The newest ones stay."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Protocol

from ematix_flow.errors import FlowError
from ematix_flow.result import RunResult
from ematix_flow.secrets import redact_text
from ematix_flow.specs import StateStore
from ematix_flow.state import durable
from ematix_flow.state.holder import Holder
from ematix_flow.state.lock import PipelineBusy
from ematix_flow.state.memory import Memory
from ematix_flow.state.vault import RUNS

KEPT = 200
RUNNING, DIED, FAILED = "running", "died", "failed"

_LONGEST_ERROR = 2_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Run:
    run_id: str
    """Begins with the time, so that ids sort by it."""
    pipeline: str
    started_at: datetime
    holder: Holder
    status: str = RUNNING
    """`running`, `success`, `stopped` or `failed`; `died` if it was running when its process ended."""
    ended_at: datetime | None = None
    counters: dict[str, Any] = field(default_factory=dict)
    """Those of `RunResult`; none unless the run ended well."""
    error_code: str = ""
    error: str = ""

    def facts(self) -> dict[str, Any]:
        """As data for whoever looks at it."""
        facts: dict[str, Any] = asdict(self)
        del facts["holder"], facts["counters"]
        return facts | {"host": self.holder.host, "pid": self.holder.pid} | self.counters


class Remembered(Protocol):
    """A pipeline of either kind."""

    @property
    def name(self) -> str: ...
    @property
    def state_store(self) -> StateStore: ...


def recorded(spec: Remembered, work: Callable[[], RunResult]) -> RunResult:
    """Do the work, and leave a record of it. That a record could not be written is a warning and no more."""
    return recorded_as(spec, lambda _: work())


def recorded_as(spec: Remembered, work: Callable[[str], RunResult]) -> RunResult:
    """The same for work that tells the id of the run."""
    run = _begun(spec)
    try:
        result = work(run.run_id if run else new_run_id())
    except BaseException as error:
        facts = _of(error)
        reason = facts["error"].partition("\n")[0]
        _log.info("run failed", extra=_named(spec, run) | {"code": facts["error_code"], "reason": reason})
        _ended(spec, run, status=FAILED, **facts)
        raise
    counters = asdict(result)
    status = counters.pop("status")
    del counters["pipeline"]
    _log.info("run ended", extra=_named(spec, run) | {"status": status})
    _ended(spec, run, status=status, counters=counters)
    return result


def _named(spec: Remembered, run: Run | None) -> dict[str, str]:
    return {"pipeline": spec.name} | ({"run_id": run.run_id} if run else {})


def new_run_id() -> str:
    return f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{secrets.token_hex(2)}"


def runs_of(memory: Memory) -> list[Run]:
    """Newest first."""
    documents = memory.vault.shelf(RUNS).values() if memory.vault else _on_disk(memory).values()
    runs = sorted(map(_from_document, documents), key=lambda run: run.run_id, reverse=True)
    # Only one process runs a pipeline, so that one which was let in later shows that those before it are over.
    let_in = next((i for i, run in enumerate(runs) if run.error_code != PipelineBusy.code), len(runs))
    return [
        replace(run, status=DIED) if run.status == RUNNING and (i > let_in or run.holder.is_dead) else run
        for i, run in enumerate(runs)
    ]


def _begun(spec: Remembered) -> Run | None:
    """None if there is, or can be, no record of it."""
    if spec.state_store.kind == "in_memory":
        return None
    run = Run(new_run_id(), spec.name, datetime.now(UTC), Holder.here())
    return run if _written(spec, run, first=True) else None


def _ended(spec: Remembered, run: Run | None, **facts: Any) -> None:
    if run is not None:
        _written(spec, replace(run, ended_at=datetime.now(UTC), **facts), first=False)


def _of(error: BaseException) -> dict[str, str]:
    if isinstance(error, FlowError):
        code, words = error.code, error.found
    else:
        code = "unexpected" if isinstance(error, Exception) else "interrupted"
        words = f"{type(error).__name__}: {error}"
    return {"error_code": code, "error": redact_text(words)[:_LONGEST_ERROR]}


def _written(spec: Remembered, run: Run, *, first: bool) -> bool:
    try:
        memory = Memory(spec.name, spec.state_store)
        try:
            _write(memory, run, first=first)
        finally:
            memory.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the pipeline can run
        reason = redact_text(str(error).partition("\n")[0])
        _log.warning("run not recorded", extra={"pipeline": spec.name, "run_id": run.run_id, "reason": reason})
        return False
    return True


def _write(memory: Memory, run: Run, *, first: bool) -> None:
    document = json.dumps(asdict(run), default=datetime.isoformat).encode()
    if memory.vault is not None:
        known = sorted(memory.vault.shelf(RUNS)) if first else []
        memory.vault.put_on_shelf(RUNS, {run.run_id: document}, known[: -KEPT + 1])
        return
    folder = memory.folder / RUNS
    durable.make(folder)
    durable.write(folder / f"{run.run_id}.json", document)
    for old in sorted(folder.glob("*.json"))[:-KEPT] if first else ():
        old.unlink(missing_ok=True)


def _on_disk(memory: Memory) -> dict[str, bytes]:
    return {file.stem: file.read_bytes() for file in (memory.folder / RUNS).glob("*.json")}


def _from_document(document: bytes) -> Run:
    facts = json.loads(document)
    for name in ("started_at", "ended_at"):
        facts[name] = datetime.fromisoformat(facts[name]) if facts[name] else None
    return Run(**(facts | {"holder": Holder(**facts["holder"])}))

"""Random schedules of batches, crashes, lost disks and lost leases, with the real stores and a small engine in Spark's
place: whatever happens, every event is in the target once, and the state is that of all of them."""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ematix_flow.specs import PipelineSpec, StateStore
from ematix_flow.state.dead_letters import DeadLetter
from ematix_flow.state.fence import Fence
from ematix_flow.state.holder import Holder
from ematix_flow.state.memory import Memory
from ematix_flow.state.store import Store
from ematix_flow.state.vault import LeaseLost
from ematix_flow.streams.steps import STEPS

SLOW = int(os.environ.get("EMATIX_FLOW_SCHEDULES", "5000"))


class Killed(Exception):
    pass


@dataclass
class Target:
    """What a reader sees: rows behind a fence, in one step."""

    rows: list[int] = field(default_factory=list)
    fence: Fence | None = None

    def apply(self, rows: list[int], fence: Fence) -> None:
        if self.fence is None or not fence.passed(self.fence.generation, self.fence.batch):
            self.rows += rows
            self.fence = fence


class Process:
    """Follows Spark's protocol: plans `offsets/N`, leaves the state of version N+1, notes `commits/N`. Numbers that can
    be divided by seven are bad rows."""

    def __init__(self, store: Store, target: Target, arrived: Callable[[], int]) -> None:
        self.store, self._target, self._arrived = store, target, arrived

    def batch(self, on_step: Callable[[str], None]) -> bool:
        """False if there was nothing to do."""
        folder, store = self.store.checkpoint, self.store
        number = max((int(file.name) for file in (folder / "commits").glob("*")), default=-1) + 1
        planned = folder / "offsets" / str(number)
        if not planned.exists():
            start = json.loads((folder / "offsets" / str(number - 1)).read_text())[1] if number else 0
            if start == self._arrived():
                return False
            _write(planned, [start, self._arrived()])
        on_step("plan")
        rows = list(range(*json.loads(planned.read_text())))
        on_step("compute")
        total = json.loads((folder / f"state/0/0/{number}.delta").read_text()) if number else 0
        _write(folder / f"state/0/0/{number + 1}.delta", total + sum(rows))
        on_step("stage")
        store.save(number)
        on_step("save")
        store.check()
        self._target.apply([row for row in rows if row % 7], Fence("p", "t", store.generation, number))
        on_step("apply")
        store.divert([letter(row) for row in rows if row % 7 == 0])
        on_step("divert")
        on_step("release")
        _write(folder / "commits" / str(number), {})
        on_step("commit")
        return True

    def kill(self) -> None:
        """What is left of a process that was killed: nothing of its own, and a lease that it does not give back."""
        keeper = self.store._keeper
        keeper._lease._over.set()
        self.store.dead_letters.close()
        keeper._vault.close()
        self.store._writer.release()


def letter(row: int) -> DeadLetter:
    now = datetime.now(UTC)
    return DeadLetter("p", "decode", "bad", "seven", "s", str(row), None, "json", str(row).encode(), now)


def _write(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.tmp")
    draft.write_text(json.dumps(content))
    draft.replace(file)


EVENTS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(1, 9)),
    st.tuples(st.just("run"), st.integers(0, 1), st.integers(1, 3)),
    st.tuples(st.just("die"), st.integers(0, 1), st.sampled_from(STEPS)),
    st.tuples(st.just("pause"), st.integers(0, 1), st.sampled_from(STEPS)),
    st.tuples(st.just("lose disk"), st.integers(0, 1)),
)


class World:
    """Two machines, one store, one target."""

    def __init__(self, folder: Path, declared: StateStore) -> None:
        self._pipeline, self._declared, self._folder = uuid4().hex, declared, folder
        self._target, self.arrived = Target(), 0

    def happen(self, what: str, *how: object) -> None:
        match what, *how:
            case "arrive", int(many):
                self.arrived += many
            case "run", int(machine), int(batches):
                process = self.process(machine)
                for _ in range(batches):
                    process.batch(lambda _: None)
                process.store.close()
            case "die", int(machine), point:
                process = self.process(machine)
                with suppress(Killed):
                    process.batch(_dying_at(point))
                process.kill()
            case "pause", int(machine), point:
                self._paused(machine, point)
            case "lose disk", int(machine):
                shutil.rmtree(self._disk(machine), ignore_errors=True)

    def _paused(self, machine: int, point: object) -> None:
        """A process stands still after a step; the other machine takes over; then the first one goes on."""
        first = self.process(machine)

        def take_over(step: str) -> None:
            if step == point:
                second = self.process(1 - machine)
                second.batch(lambda _: None)
                second.store.close()

        with suppress(LeaseLost):
            first.batch(take_over)
            first.batch(lambda _: None)
        first.store.close()

    def process(self, machine: int) -> Process:
        spec = PipelineSpec.model_construct(name=self._pipeline, state_store=self._declared)
        memory = Memory(spec.name, spec.state_store)
        disk = self._disk(machine)
        # A save of everything every time would hide what the small ones lack.
        return Process(Store(spec.name, disk, memory.vault, 0.05), self._target, lambda: self.arrived)

    def _disk(self, machine: int) -> Path:
        return self._folder / self._pipeline / str(machine)

    def check(self) -> None:
        """On a machine that has never seen the pipeline."""
        last = self.process(2)
        while last.batch(lambda _: None):
            pass
        states = sorted((last.store.checkpoint / "state/0/0").glob("*.delta"), key=lambda file: int(file.stem))
        letters = sorted(int(one.payload or b"") for one in last.store.dead_letters.all())
        last.store.close()
        everything = range(self.arrived)
        assert self._target.rows == [row for row in everything if row % 7]
        assert letters == [row for row in everything if row % 7 == 0]
        assert [json.loads(file.read_text()) for file in states[-1:]] == [sum(everything)] * bool(self.arrived)


def _dying_at(point: object) -> Callable[[str], None]:
    def on_step(step: str) -> None:
        if step == point:
            raise Killed

    return on_step


@pytest.fixture(params=["postgres", "delta"])
def declared(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], StateStore]:
    """For one schedule."""
    if request.param == "delta":
        # Every process reads a table's log from its beginning, so all schedules in one table would take twice as long.
        return lambda: StateStore(kind="delta", path=str(tmp_path / "lakes" / uuid4().hex))
    store = StateStore(kind="postgres", url=request.getfixturevalue("postgres_url"))
    return lambda: store


@pytest.fixture(autouse=True)
def everybody_passes_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that whoever comes takes over at once, as after fifteen seconds of silence."""
    here = Holder.here()
    monkeypatch.setattr(Holder, "here", lambda: Holder(here.host, here.machine, here.pid, "before"))


def live_through(schedule: list[tuple[object, ...]], world: World) -> None:
    for what, *how in schedule:
        world.happen(str(what), *how)
    world.check()


SCHEDULES = st.lists(EVENTS, min_size=3, max_size=9)
COMMON = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture], "database": None}


@given(SCHEDULES)
@settings(max_examples=40, derandomize=True, **COMMON)
def test_some_schedules(tmp_path: Path, declared: Callable[[], StateStore], schedule: list[tuple[object, ...]]) -> None:
    live_through(schedule, World(tmp_path, declared()))


@pytest.mark.slow
@given(SCHEDULES)
@settings(max_examples=SLOW // 2, **COMMON)
def test_thousands_of_schedules(
    tmp_path: Path, declared: Callable[[], StateStore], schedule: list[tuple[object, ...]]
) -> None:
    live_through(schedule, World(tmp_path, declared()))

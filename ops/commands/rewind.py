"""`flow rewind`: have batches read, computed and applied again."""

from __future__ import annotations

from contextlib import closing
from datetime import datetime

import click

from ematix_flow.errors import UsageError
from ematix_flow.ops.commands.running import which_pipeline
from ematix_flow.ops.commands.state import ask, yes_option
from ematix_flow.ops.discovery import find_spec
from ematix_flow.ops.dlq import moment
from ematix_flow.ops.output import table
from ematix_flow.ops.state import memory_of, time_text
from ematix_flow.ops.terminal import show
from ematix_flow.specs import PipelineSpec
from ematix_flow.state.batches import Batches
from ematix_flow.state.checkpoint import files_in
from ematix_flow.state.rewinding import Goal, rewind, to_batch, to_start, to_time
from ematix_flow.state.store import open_store
from ematix_flow.state.tending import at_rest
from ematix_flow.state.vault import StateDamaged

_AGAIN = {
    "append": "append: their rows are added a second time",
    "merge": "merge: the same keys are written again, none twice; a key may show an older row until all is repeated",
    "scd2": "scd2: versions that are there already are found again, none twice",
    "truncate": "truncate: each repeated batch replaces the content, and the last one stays",
}


@click.command("rewind")
@which_pipeline
@click.option("--to", "time", metavar="TIME", help='Repeat what was planned since "2h" ago or since "2026-01-31".')
@click.option("--to-batch", "batch", type=click.IntRange(0), metavar="N", help="Repeat what came after batch N.")
@click.option("--from-start", is_flag=True, help="Repeat everything, as if the pipeline had never run.")
@yes_option
def rewind_command(
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    time: str | None,
    batch: int | None,
    from_start: bool,
    yes: bool,
) -> None:
    """Go back to an earlier batch; the next run goes on from there.

    Says first what will be repeated on which target, then asks. What is in the targets stays there.
    """
    if [time is not None, batch is not None, from_start].count(True) != 1:
        raise UsageError(
            "rewind needs to know where to", next_step="add one of --to TIME, --to-batch N and --from-start"
        )
    since = None if time is None else moment(time)
    spec = find_spec(wanted, modules=modules, pipeline=pipeline)
    if spec.transform.join is not None and spec.transform.window is not None:
        raise UsageError(
            f"{spec.name} is a join and a window, two queries whose batches are not the same, and they cannot be taken "
            "back together",
            next_step="give the pipeline a new name to read everything again",
        )
    with closing(memory_of(spec)) as memory:
        known = Batches.of(memory)
        if not known.sizes and not files_in(memory.folder / "checkpoint"):
            raise UsageError(
                f"pipeline {spec.name!r} has no state in {memory.place}",
                next_step="check the state store; a pipeline that never ran begins with the first input anyway",
            )
        if from_start:
            with at_rest(spec.name, memory) as resting:
                _tell(spec, known, to_start(known), yes=yes)
                resting.begin_anew()
            show(f"{spec.name}: the next run begins with batch 0")
            return
    _go_back(spec, since, batch, yes=yes)


def _go_back(spec: PipelineSpec, since: datetime | None, batch: int | None, *, yes: bool) -> None:
    with closing(open_store(spec)) as store:
        batches = Batches.of_folder(store.checkpoint)
        goal = to_time(batches, since) if since is not None else to_batch(batches, batch or 0)
        if not goal.repeated:
            show(f"{spec.name}: nothing came after batch {goal.last}, so that there is nothing to repeat")
            return
        assert goal.last is not None
        _tell(spec, batches, goal, yes=yes)
        rewind(store, goal.last)
    show(f"{spec.name}: the next run goes on with batch {goal.last + 1}")


def _tell(spec: PipelineSpec, batches: Batches, goal: Goal, *, yes: bool) -> None:
    """What will happen, before it does."""
    place = "the start" if goal.last is None else f"the end of batch {goal.last}"
    rows = [["back to", place], ["repeated", _repeated(batches, goal)]]
    rows += [[f"target {name}", _AGAIN[of.mode]] for name, of in zip(spec.target_names, spec.targets, strict=True)]
    rows.append(["stays", "every row that is in a target; dead letters, and a row that fails again is no second one"])
    if goal.last is None:
        rows.append(["forgotten", "operator state, and what the first start has fixed, such as inferred columns"])
    show(f"{spec.name}\n{table(rows, indent='  ')}")
    if not yes:
        ask(f"Rewind {spec.name}?", f"pipeline {spec.name!r} would go back to {place}")


def _repeated(batches: Batches, goal: Goal) -> str:
    if not goal.repeated:
        return "all input"
    first, last = goal.repeated[0], goal.repeated[-1]
    which = f"batch {first}" if first == last else f"batches {first} to {last}"
    try:
        planned = [time_text(batches.planned_at(number)) for number in dict.fromkeys([first, last])]
    except StateDamaged:  # which may be why somebody goes back to the start
        return which
    earlier = " and those before" if goal.last is None and first > 0 else ""
    return f"{which}{earlier}, planned {'from ' if len(planned) > 1 else 'at '}{' to '.join(planned)}"

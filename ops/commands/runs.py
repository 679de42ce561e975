"""`flow runs` and `flow logs`: what each run of a pipeline did, and how it ended."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from urllib.parse import unquote

import click

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.ops.commands.running import modules_option
from ematix_flow.ops.discovery import find_one, survey
from ematix_flow.ops.dlq import printable
from ematix_flow.ops.logs import log_file, logged
from ematix_flow.ops.output import as_json, by_name, format_option, table
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.state import memory_of, time_text
from ematix_flow.ops.terminal import show
from ematix_flow.specs import StateStore
from ematix_flow.state.history import KEPT, Run, runs_of
from ematix_flow.state.home import home
from ematix_flow.state.memory import Memory
from ematix_flow.state.vault import RUNS

_SHOWN = 50
_COLUMNS = ["RUN", "PIPELINE", "STATUS", "STARTED", "SECONDS", "BATCHES", "READ", "WRITTEN", "CODE"]


@click.group("runs")
def runs_command() -> None:
    """List and show the runs of pipelines.

    The newest of each pipeline are kept where its state is; none of a pipeline with an in_memory state store.
    """


@runs_command.command("list")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Newest first; {_SHOWN} as text, all as JSON.")
@format_option
@click.pass_obj
def list_command(
    settings: Settings, wanted: str | None, modules: tuple[str, ...], limit: int | None, output_format: Format
) -> None:
    """List runs, newest first; of all pipelines that are declared or have state here, if none is named."""
    runs = sorted(_runs(wanted, modules, settings), key=lambda run: run.run_id, reverse=True)
    most = limit or (None if output_format == "json" else _SHOWN)
    if output_format == "json":
        show(as_json([run.facts() for run in runs[:most]]))
    elif runs:
        more = f"; {most:,} of {len(runs):,}, `--limit` shows more" if most and len(runs) > most else ""
        show(f"{table([_COLUMNS, *map(_row, runs[:most])])}\n\n`flow runs show RUN` shows one{more}")
    else:
        show("no runs")


@runs_command.command("show")
@click.argument("run_id", metavar="RUN")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@format_option
@click.pass_obj
def show_command(
    settings: Settings, run_id: str, wanted: str | None, modules: tuple[str, ...], output_format: Format
) -> None:
    """Show all that is known of one run. The beginning of its id is enough."""
    facts = _run(run_id, wanted, modules, settings).facts()
    show(as_json(facts) if output_format == "json" else _text(facts))


@click.command("logs")
@click.argument("run_id", metavar="RUN")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@click.pass_obj
def logs_command(settings: Settings, run_id: str, wanted: str | None, modules: tuple[str, ...]) -> None:
    """Print what was logged during a run, on the machine on which it ran. The beginning of its id is enough."""
    run = _run(run_id, wanted, modules, settings)
    lines = list(logged(run.pipeline, run.started_at, run.ended_at))
    if not lines:
        raise UsageError(
            f"nothing of run {run.run_id} is in {log_file()}",
            next_step=f"it ran on {run.holder.host}; the newest log is there, below $EMATIX_FLOW_HOME",
        )
    show("\n".join(map(printable, lines)))


def _run(run_id: str, wanted: str | None, modules: tuple[str, ...], settings: Settings) -> Run:
    found = [run for run in _runs(wanted, modules, settings) if run.run_id.startswith(run_id)]
    if not found:
        raise UsageError(
            f'there is no run "{run_id}"',
            next_step=f"`flow runs list` shows the newest, of which {KEPT} are kept for each pipeline",
        )
    if len(found) > 1:
        ids = ", ".join(f"{run.run_id} of {run.pipeline}" for run in found[:5])
        raise UsageError(f'several runs begin with "{run_id}": {ids}', next_step="write more of the id")
    return found[0]


def _runs(wanted: str | None, modules: tuple[str, ...], settings: Settings) -> Iterator[Run]:
    if wanted is not None:
        with closing(memory_of(find_one(wanted, modules=modules))) as memory:
            yield from runs_of(memory)
        return
    for name, store in _all_stores(modules).items():
        try:
            with closing(Memory(name, store)) as memory:
                yield from runs_of(memory)
        except FlowError as error:
            settings.stderr.line(f"warning: {name}: {error.found}")


def _all_stores(modules: tuple[str, ...]) -> dict[str, StateStore]:
    """Of the pipelines that are declared here, and of those that have left runs on this disk."""
    declared = [spec for place in survey(modules) for spec in place.specs]
    left = {unquote(folder.parent.name): StateStore() for folder in (home() / "state").glob(f"*/{RUNS}")}
    return left | {spec.name: spec.state_store for spec in declared}


def _row(run: Run) -> list[str]:
    counters = run.counters
    seconds = f"{(run.ended_at - run.started_at).total_seconds():,.1f}" if run.ended_at else ""
    counts = [str(counters.get(name, "")) for name in ("batches", "rows_consumed")]
    written = str(sum(counters["rows_written"].values())) if counters else ""
    started = time_text(run.started_at)
    return [run.run_id, printable(run.pipeline), run.status, started, seconds, *counts, written, run.error_code]


def _text(facts: dict[str, Any]) -> str:
    error = facts.pop("error")
    rows = [[name.replace("_", " "), printable(_words(value))] for name, value in facts.items() if value]
    return table(rows) + (f"\n\n{error}" if error else "")


def _words(value: object) -> str:
    return by_name(value) if isinstance(value, dict) else str(value)

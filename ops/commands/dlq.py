"""`flow dlq`: the rows that a pipeline could not use. Look at them, replay them, park them, purge them."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

import click

from ematix_flow.errors import UsageError
from ematix_flow.ops.commands.running import modules_option, which_pipeline
from ematix_flow.ops.discovery import find_spec
from ematix_flow.ops.dlq import (
    Box,
    all_boxes,
    box_of,
    find_letter,
    letter_rows,
    letter_text,
    letters_json,
    moment,
    printable,
)
from ematix_flow.ops.output import as_json, counted, format_option, table
from ematix_flow.ops.progress import Progress
from ematix_flow.ops.running import refuse_what_cannot_run
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.terminal import show
from ematix_flow.state.dead_letters import LEASED, PARKED, PENDING, STATUSES, Which
from ematix_flow.streams.stopping import asked_to_stop

if TYPE_CHECKING:
    from ematix_flow.streams.replay import ReplayResult

_SHOWN = 50

_status_option = click.option("--status", type=click.Choice(STATUSES), help="Only letters of this status.")
_stage_option = click.option("--stage", metavar="STAGE", help="Only letters of this stage, such as decode or write.")
_limit_option = click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many, the oldest first.")


@click.group("dlq")
def dlq_command() -> None:
    """Look at, replay, park and purge dead letters.

    A dead letter is a row that could not be used, kept with its original bytes and the reason, under on_error = "dlq".
    It is pending; leased while a replay has it in hand; or parked, after too many attempts or by `flow dlq park`.
    """


@dlq_command.command("stats")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@format_option
def stats_command(wanted: str | None, modules: tuple[str, ...], output_format: Format) -> None:
    """Count dead letters by stage and error; of all pipelines with state here or declared here, if none is named."""
    found: list[dict[str, object]] = []
    for box in _boxes(wanted, modules):
        with box.opened() as letters:
            found += [{"pipeline": box.pipeline, **asdict(count)} for count in letters.counts()]
    if output_format == "json":
        show(as_json(found))
    elif found:
        columns = ("pipeline", "stage", "error_code", "status", "letters")
        rows = [[printable(str(one[column])) for column in columns] for one in found]
        show(table([["PIPELINE", "STAGE", "CODE", "STATUS", "LETTERS"], *rows]))
        show(
            "\n`flow dlq list NAME` shows them, `flow dlq replay NAME` puts the pending ones through the pipeline again"
        )
    else:
        show("no dead letters")


@dlq_command.command("list")
@which_pipeline
@_status_option
@_stage_option
@click.option("--since", metavar="WHEN", help='Only letters that failed since "2h" ago or since "2026-01-31".')
@click.option("--limit", type=click.IntRange(1), metavar="N", help=f"Oldest first; {_SHOWN} as text, all as JSON.")
@format_option
def list_command(
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    status: str | None,
    stage: str | None,
    since: str | None,
    limit: int | None,
    output_format: Format,
) -> None:
    """List the dead letters of a pipeline, oldest first."""
    most = limit or (None if output_format == "json" else _SHOWN)
    chosen = STATUSES if status is None else (status,)
    which = Which(chosen, stage=stage, since=moment(since) if since else None, limit=most)
    box = box_of(wanted, modules, pipeline)
    with box.opened() as letters:
        if output_format == "json":
            show(letters_json(letters.find(which)))
            return
        rows = letter_rows(letters.find(which))
        total = letters.count(Which(chosen, stage=stage, since=which.since))
    if not total:
        show(f"{box.pipeline}: no {'such ' if status or stage or since else ''}dead letters")
        return
    more = f"; {len(rows) - 1:,} of {total:,}, `--limit` shows more" if total >= len(rows) else ""
    show(f"{table(rows)}\n\n`flow dlq show ID` shows one with its payload{more}")


@dlq_command.command("show")
@click.argument("id", metavar="ID")
@click.argument("wanted", metavar="[NAME|FILE.toml]", required=False)
@modules_option
@format_option
def show_command(id: str, wanted: str | None, modules: tuple[str, ...], output_format: Format) -> None:
    """Show all that is known of one dead letter.

    The beginning of its ID is enough. It is looked for in all pipelines with state here or declared here, or in the
    one that is named.
    """
    box, letter = find_letter(id, _boxes(wanted, modules))
    if output_format == "json":
        show(letters_json(letter))
        return
    payload = "" if letter.payload is None else f"{printable(letter.payload)}\n\n"
    again = f"`flow dlq replay {box.pipeline} --id {letter.id}` tries it again"
    show(f"{table(letter_text(letter))}\n\n{payload}{again}")


@dlq_command.command("replay")
@which_pipeline
@click.option("--id", "ids", multiple=True, metavar="ID", help="This letter, also a parked one. May be repeated.")
@_stage_option
@_limit_option
@format_option
@click.pass_obj
def replay_command(
    settings: Settings,
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    ids: tuple[str, ...],
    stage: str | None,
    limit: int | None,
    output_format: Format,
) -> None:
    """Put dead letters through their pipeline again.

    All pending ones, unless told which. What succeeds is in the targets once and is no letter any more; what fails
    again waits with one attempt more, and is parked after dlq_max_attempts. The pipeline itself may be running.
    """
    spec = find_spec(wanted, modules=modules, pipeline=pipeline)
    refuse_what_cannot_run(spec)
    box = box_of(wanted, modules, pipeline)
    chosen = tuple(find_letter(id, [box])[1].id for id in ids) or None
    with box.opened() as letters:
        wanting = Which((PENDING,) if chosen is None else STATUSES, stage=stage, ids=chosen)
        waiting = letters.count(wanting) + letters.count(Which((LEASED,)))
        parked = letters.count(Which((PARKED,)))
    from ematix_flow.streams.replay import ReplayResult, replay

    result = ReplayResult(spec.name)
    if waiting:
        with asked_to_stop() as stop, Progress(spec, settings) as progress:
            result = replay(spec, ids=chosen, stage=stage, limit=limit, on_batch=progress.batch, stop=stop)
    show(as_json(asdict(result)) if output_format == "json" else _replayed(result, parked))


def _replayed(result: ReplayResult, parked: int) -> str:
    name, again = result.pipeline, f"`flow dlq replay {result.pipeline}"
    if result.status == "stopped":
        return f"{name}: stopped as asked; {again}` goes on"
    if not result.replayed:
        hint = f"; {counted(parked, 'letter')} parked, {again} --id ID` tries a parked one again" if parked else ""
        return f"{name}: nothing to replay{hint}"
    done = f"{name}: replayed {counted(result.replayed, 'letter')}, {result.succeeded:,} succeeded"
    if not result.failed_again:
        return done
    failed = f"{result.failed_again:,} failed again, {result.parked:,} of them parked"
    return f"{done}, {failed}\n`flow dlq list {name}` shows why"


@dlq_command.command("park")
@click.argument("ids", metavar="ID...", nargs=-1, required=True)
@click.option("--in", "wanted", metavar="NAME|FILE.toml", help="Their pipeline; without it, all that are known here.")
@modules_option
def park_command(ids: tuple[str, ...], wanted: str | None, modules: tuple[str, ...]) -> None:
    """Park dead letters: a replay leaves them out, unless it names them.

    The beginning of an ID is enough.
    """
    found = [find_letter(id, _boxes(wanted, modules)) for id in ids]
    if taken := [letter.id for _, letter in found if letter.status == LEASED]:
        raise UsageError(
            f"in the hands of a replay: {', '.join(taken)}", next_step="park them when `flow dlq replay` has ended"
        )
    for box, letter in found:
        with box.opened() as letters:
            letters.park([letter.id])
    show(f"parked {counted(len(found), 'letter')}; `flow dlq replay NAME --id ID` tries a parked one again")


@dlq_command.command("purge")
@which_pipeline
@click.option("--status", type=click.Choice((PENDING, PARKED)), help="Only letters of this status.")
@click.option("--older-than", metavar="WHEN", help='Only letters that failed more than "7d" ago, or before a date.')
@click.option("--all", "everything", is_flag=True, help="All letters of the pipeline.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def purge_command(
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    status: Literal["pending", "parked"] | None,
    older_than: str | None,
    everything: bool,
    yes: bool,
) -> None:
    """Delete dead letters for good; never those that a replay has in hand."""
    if everything == bool(status or older_than):
        raise UsageError(
            "purge needs to know which letters", next_step="add --status, --older-than or both; or --all alone"
        )
    statuses = (PENDING, PARKED) if status is None else (status,)
    which = Which(statuses, before=moment(older_than) if older_than else None)
    box = box_of(wanted, modules, pipeline)
    with box.opened() as letters:
        doomed = letters.count(which)
        if doomed and not yes:
            _confirm(box, doomed)
        show(f"{box.pipeline}: purged {counted(letters.purge(which) if doomed else 0, 'letter')}")


def _boxes(wanted: str | None, modules: tuple[str, ...]) -> list[Box]:
    return all_boxes(modules) if wanted is None else [box_of(wanted, modules)]


def _confirm(box: Box, doomed: int) -> None:
    if not sys.stdin.isatty():
        raise UsageError(
            f"{counted(doomed, 'letter')} of {box.pipeline} would be gone for good, and there is nobody to ask",
            next_step="add --yes",
        )
    click.confirm(f"Delete {counted(doomed, 'letter')} of {box.pipeline} for good?", abort=True, err=True)

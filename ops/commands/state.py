"""`flow state`: what a pipeline remembers and where; bringing a disk up to it; giving room back."""

from __future__ import annotations

import sys
from contextlib import closing

import click

from ematix_flow.errors import UsageError
from ematix_flow.ops.commands.running import which_pipeline
from ematix_flow.ops.discovery import find_spec
from ematix_flow.ops.output import as_json, counted, format_option
from ematix_flow.ops.settings import Format
from ematix_flow.ops.state import memory_of, size_text, state_facts, state_of, state_text
from ematix_flow.ops.terminal import show
from ematix_flow.state.checkpoint import files_in
from ematix_flow.state.tending import at_rest, compact, nothing_to_restore

yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def ask(question: str, found: str) -> None:
    """Go on only if a person says so."""
    if not sys.stdin.isatty():
        raise UsageError(f"{found}, and there is nobody to ask", next_step="add --yes")
    click.confirm(question, abort=True, err=True)


@click.group("state")
def state_command() -> None:
    """Look at, restore and compact what a pipeline remembers.

    Its checkpoint, operator state, dead letters and run history are in its [state_store].
    """


@state_command.command("show")
@which_pipeline
@format_option
def show_command(wanted: str, modules: tuple[str, ...], pipeline: str | None, output_format: Format) -> None:
    """Show what a pipeline remembers, and who runs it.

    The pipeline may be running. Nothing is changed.
    """
    state = state_of(find_spec(wanted, modules=modules, pipeline=pipeline))
    show(as_json(state_facts(state)) if output_format == "json" else state_text(state))


@state_command.command("restore")
@which_pipeline
@yes_option
def restore_command(wanted: str, modules: tuple[str, ...], pipeline: str | None, yes: bool) -> None:
    """Make this disk an exact image of the state store.

    A pipeline does so by itself when it starts, unless its disk has a history of its own; then a person decides here.
    """
    spec = find_spec(wanted, modules=modules, pipeline=pipeline)
    with closing(memory_of(spec)) as memory:
        if memory.vault is None or memory.vault.latest() is None:
            raise nothing_to_restore(memory)
        with at_rest(spec.name, memory) as resting:
            if not yes and (here := len(files_in(memory.folder / "checkpoint"))):
                found = f"{counted(here, 'file')} in {memory.folder} would give way to what is in {memory.place}"
                ask(f"{found}. Restore {spec.name}?", found)
            done = resting.restore()
        if not (done.written or done.removed):
            show(f"{spec.name}: this disk has what {memory.place} has; nothing was changed")
            return
        changes = f"{counted(done.written, 'file')} written, {counted(done.removed, 'file')} removed"
        show(f"{spec.name}: restored from {memory.place}; {changes}")


@state_command.command("compact")
@which_pipeline
def compact_command(wanted: str, modules: tuple[str, ...], pipeline: str | None) -> None:
    """Forget older generations and leftovers, and give their room back.

    Generations are older after `flow rewind`. With a state store on the local disk, the pipeline must not be running.
    """
    spec = find_spec(wanted, modules=modules, pipeline=pipeline)
    with closing(memory_of(spec)) as memory:
        show(f"{spec.name}: {size_text(compact(spec.name, memory))} given back in {memory.place}")

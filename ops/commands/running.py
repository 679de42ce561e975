"""`flow run` and `flow consume`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ematix_flow.ops.discovery import find_one
from ematix_flow.ops.output import format_option
from ematix_flow.ops.running import result_json, result_text, run
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.terminal import show

F = TypeVar("F", bound=Callable[..., Any])


def modules_option(function: F) -> F:
    option = click.option(
        "--module",
        "-m",
        "modules",
        multiple=True,
        metavar="M",
        help="Import this Python module first: it declares pipelines or connections. May be repeated.",
    )
    return option(function)


def which_pipeline(function: F) -> F:
    """NAME|FILE.toml with --module and --pipeline."""
    choice = click.option("--pipeline", metavar="NAME", help="One of several pipelines in FILE.toml.")
    return click.argument("wanted", metavar="NAME|FILE.toml")(modules_option(choice(function)))


@click.command("run")
@which_pipeline
@click.option("--bounded", is_flag=True, help="Stop when the input that exists now is done.")
@click.option(
    "--flush/--no-flush",
    default=True,
    show_default=True,
    help="At the end of a bounded run, close the windows that are still open.",
)
@format_option
@click.pass_obj
def run_command(
    settings: Settings,
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    bounded: bool,
    flush: bool,
    output_format: Format,
) -> None:
    """Run a pipeline; a later run goes on where this one ended.

    Without --bounded it runs until SIGTERM or Ctrl-C, then finishes its batch, commits and exits 0.
    """
    spec = find_one(wanted, modules=modules, pipeline=pipeline)
    result = run(spec, settings, bounded=bounded, flush=flush)
    show(result_json(result) if output_format == "json" else result_text(result, spec))


@click.command("consume")
@which_pipeline
@format_option
@click.pass_obj
def consume_command(
    settings: Settings, wanted: str, modules: tuple[str, ...], pipeline: str | None, output_format: Format
) -> None:
    """Run a pipeline as a daemon, until SIGTERM or Ctrl-C.

    When asked to stop it finishes its batch, commits and exits 0.
    """
    spec = find_one(wanted, modules=modules, pipeline=pipeline)
    result = run(spec, settings, bounded=False)
    show(result_json(result) if output_format == "json" else result_text(result, spec))

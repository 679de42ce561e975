"""`flow run` and `flow consume`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from ematix_flow.errors import UsageError
from ematix_flow.jobs import BatchPipeline
from ematix_flow.ops.discovery import find_one, find_stream
from ematix_flow.ops.dlq import position_text
from ematix_flow.ops.failing import known_error, report
from ematix_flow.ops.output import format_option
from ematix_flow.ops.running import refuse_what_cannot_run, result_json, result_text, run
from ematix_flow.ops.settings import Format, Settings
from ematix_flow.ops.supervisor import TRY_AGAIN, Restarts, attach, may_pass, supervise, tell
from ematix_flow.ops.terminal import show
from ematix_flow.streams.backfill import Range

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


def pipeline_option(function: F) -> F:
    return click.option("--pipeline", metavar="NAME", help="One of several pipelines in FILE.toml.")(function)


def which_pipeline(function: F) -> F:
    """NAME|FILE.toml with --module and --pipeline."""
    return click.argument("wanted", metavar="NAME|FILE.toml")(modules_option(pipeline_option(function)))


@click.command("run")
@which_pipeline
@click.option("--bounded", is_flag=True, help="Stop when the input that exists now is done.")
@click.option(
    "--flush/--no-flush",
    default=True,
    show_default=True,
    help="At the end of a bounded run, close the windows that are still open.",
)
@click.option("--from", "begin", metavar="POSITION", help="Read a range of Kafka, from here on. Needs --bounded.")
@click.option("--to", "end", metavar="POSITION", help="Where the range ends; without it, what is there now.")
@format_option
@click.pass_obj
def run_command(
    settings: Settings,
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    bounded: bool,
    flush: bool,
    begin: str | None,
    end: str | None,
    output_format: Format,
) -> int:
    """Run a pipeline; a later run goes on where this one ended.

    Without --bounded it runs until SIGTERM or Ctrl-C, then finishes its batch, commits and exits 0. A batch pipeline
    (@ematix.pipeline) ends when its input is done.

    With --from or --to it reads that range of its topics once, beside the pipeline, which may be running: a POSITION is
    earliest, latest, a time ("2026-01-31T08:00:00Z", "2h" ago), an offset, or offsets ("orders/0=5, orders/1=7").
    """
    spec = find_one(wanted, modules=modules, pipeline=pipeline)
    if isinstance(spec, BatchPipeline):
        from ematix_flow.ops.commands.batch import run_batch

        if begin is not None or end is not None:
            found = f"{spec.name} is a batch pipeline, which has no range"
            raise UsageError(found, next_step="leave out --from and --to")
        return run_batch(spec, output_format)
    wanted_range = Range.of(position_text(begin), position_text(end), spec, bounded=bounded)
    result = run(spec, settings, bounded=bounded, flush=flush, wanted=wanted_range)
    show(result_json(result) if output_format == "json" else result_text(result, spec))
    return 0


@click.command("consume")
@which_pipeline
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Serve /metrics, /healthz and /readyz on this port; 0 takes a free one. Default: the pipeline's metrics_port.",
)
@click.option(
    "--restart-on-error", is_flag=True, help="Start the pipeline again after a crash or an error that may pass."
)
@click.option(
    "--initial-backoff-ms",
    type=click.IntRange(0),
    default=1_000,
    show_default=True,
    help="Wait before the first restart.",
)
@click.option(
    "--max-backoff-ms", type=click.IntRange(0), default=60_000, show_default=True, help="The wait doubles up to this."
)
@click.option("--max-restarts", type=click.IntRange(0), help="Give up after so many restarts in a row. Default: never.")
@click.option(
    "--reset-backoff-after-secs",
    type=click.FloatRange(0),
    default=60,
    show_default=True,
    help="A pipeline that ran for so long was well: wait and count from the beginning again.",
)
@click.option("--lifeline", type=int, hidden=True)
@click.option("--restarts", type=int, default=0, hidden=True)
@format_option
@click.pass_obj
def consume_command(
    settings: Settings,
    wanted: str,
    modules: tuple[str, ...],
    pipeline: str | None,
    metrics_port: int | None,
    restart_on_error: bool,
    initial_backoff_ms: int,
    max_backoff_ms: int,
    max_restarts: int | None,
    reset_backoff_after_secs: float,
    lifeline: int | None,
    restarts: int,
    output_format: Format,
) -> int:
    """Run a pipeline as a daemon, until SIGTERM or Ctrl-C.

    When asked to stop it finishes its batch, commits and exits 0. The pipeline has a process of its own, which
    --restart-on-error starts again when it crashes or fails for a reason that may pass; other errors end the daemon.
    """
    spec = find_stream(wanted, modules=modules, pipeline=pipeline)
    if lifeline is None:
        if max_restarts is not None and not restart_on_error:
            raise UsageError("--max-restarts counts what never happens", next_step="add --restart-on-error")
        refuse_what_cannot_run(spec)
        waits = (initial_backoff_ms / 1000, max_backoff_ms / 1000)
        rules = Restarts(restart_on_error, *waits, max_restarts, reset_backoff_after_secs)
        words = [f"--module={module}" for module in modules]
        words += [] if pipeline is None else [f"--pipeline={pipeline}"]
        words += [] if metrics_port is None else [f"--metrics-port={metrics_port}"]
        words += ["--restart-on-error"] if restart_on_error else []
        return supervise(spec.name, _flow(settings, "consume", wanted, *words, f"--format={output_format}"), rules)
    parent = attach(lifeline)
    try:
        result = run(spec, settings, bounded=False, metrics_port=metrics_port, restarts=restarts)
    except Exception as error:
        if not (restart_on_error and may_pass(error)):
            raise
        report(error, settings, json_output=False)
        tell(parent, known_error(error))
        return TRY_AGAIN
    show(result_json(result) if output_format == "json" else result_text(result, spec))
    return 0


def _flow(settings: Settings, *words: str) -> list[str]:
    """The same program with the same global options, whatever it was called by."""
    options = ["--debug"] * settings.debug + ["--verbose"] * settings.verbose + ["--log-format", settings.log_format]
    # -P: what lies in the current folder must not stand for an installed package.
    return [sys.executable, "-P", "-m", "ematix_flow.ops.cli", *options, *words]

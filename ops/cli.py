"""The command `flow`: its global options, its commands, its exit codes.

0: done. 1: it ran and failed. 2: unknown name, missing file, bad declaration or bad usage.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import pairwise

import click

from ematix_flow.ops.commands.batch import dry_run_command, preview_command, transform_command
from ematix_flow.ops.commands.connections import connections_command
from ematix_flow.ops.commands.dlq import dlq_command
from ematix_flow.ops.commands.doctor import doctor_command
from ematix_flow.ops.commands.init import init_command
from ematix_flow.ops.commands.listing import consume_list_command, list_command
from ematix_flow.ops.commands.plan import plan_command
from ematix_flow.ops.commands.rewind import rewind_command
from ematix_flow.ops.commands.running import consume_command, run_command
from ematix_flow.ops.commands.runs import logs_command, runs_command
from ematix_flow.ops.commands.schema import schema_command
from ematix_flow.ops.commands.secrets import secrets_command
from ematix_flow.ops.commands.state import state_command
from ematix_flow.ops.commands.status import status_command
from ematix_flow.ops.commands.validate import validate_command
from ematix_flow.ops.failing import report
from ematix_flow.ops.logs import logging_for
from ematix_flow.ops.settings import Format, Settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; the only place where an error becomes one."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    settings = Settings()
    try:
        answer = flow.main(words, prog_name="flow", standalone_mode=False, obj=settings)
    except Exception as error:  # noqa: BLE001 - nothing may reach the user as a traceback
        with logging_for(settings):
            return report(error, settings, json_output=_wants_json(words))
    return answer if isinstance(answer, int) else 0


class _InThisOrder(click.Group):
    """Lists the commands in the order in which a newcomer needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def _print_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        import ematix_flow

        click.echo(f"flow {ematix_flow.__version__}")
        context.exit()


@click.group(
    cls=_InThisOrder,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 it ran and failed; 2 unknown name, missing file, bad declaration or bad usage.",
)
@click.option("--debug", is_flag=True, help="Print the whole traceback of an error.")
@click.option("--verbose", "-v", is_flag=True, help="Print every log event on stderr, not only warnings.")
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of what is printed on stderr; json has one object per event and no progress lines.",
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Print the version."
)
@click.pass_context
def flow(context: click.Context, debug: bool, verbose: bool, log_format: Format) -> None:
    """Declarative batch and streaming pipelines on Spark.

    A pipeline is named by its NAME, if it is declared in the current folder or in a --module, or by its FILE.toml.
    """
    settings = context.ensure_object(Settings)
    settings.debug, settings.verbose, settings.log_format = debug, verbose, log_format
    context.with_resource(logging_for(settings))


for command in (
    init_command, list_command, validate_command, plan_command, preview_command, dry_run_command, run_command,
    consume_command, consume_list_command, transform_command, status_command, runs_command, logs_command, dlq_command,
    state_command, rewind_command, connections_command, secrets_command, doctor_command, schema_command,
):  # fmt: skip
    flow.add_command(command)


def _wants_json(words: Sequence[str]) -> bool:
    """Read from the words themselves, because the error may be that they could not be parsed."""
    return "--format=json" in words or ("--format", "json") in pairwise(words)


if __name__ == "__main__":
    sys.exit(main())

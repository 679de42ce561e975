"""How an error reaches the user: a code, what was found and what to do next; a traceback only with --debug."""

from __future__ import annotations

import logging
import traceback
from dataclasses import asdict
from typing import Any

import click

from ematix_flow.errors import DeclarationError, FlowError, UsageError
from ematix_flow.ops.logs import JsonLines, log_file
from ematix_flow.ops.output import as_json
from ematix_flow.ops.settings import Settings
from ematix_flow.ops.terminal import show
from ematix_flow.secrets import redact_text

_log = logging.getLogger(__name__)

INTERRUPTED = 130
"""What a shell expects of a command that was ended with Ctrl-C."""


class Unexpected(FlowError):
    """An error that nobody foresaw."""

    code = "unexpected"


def report(error: BaseException, settings: Settings, *, json_output: bool) -> int:
    """Tell the user on stderr, or on stdout as `{"error": {...}}` when the output is JSON. Returns the exit code."""
    if isinstance(error, click.Abort):
        settings.stderr.line("interrupted")
        return INTERRUPTED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        settings.stderr.line(error.format_message())
        return error.exit_code
    known = known_error(error)
    if settings.debug:
        settings.stderr.line(redact_text("".join(traceback.format_exception(error)).rstrip()))
    if known.exit_code == 1:
        facts = {"code": known.code, "error": known.found, "shown": True}
        _log.error("failed", extra=facts, exc_info=error if isinstance(known, Unexpected) else None)
    if isinstance(known, Unexpected):
        known = _with_advice(known)
    if json_output:
        show(as_json({"error": facts_of(known)}))
    elif settings.log_format == "json":
        record = logging.makeLogRecord({"msg": "failed", "levelname": "ERROR", **facts_of(known)})
        settings.stderr.line(JsonLines().format(record))
    else:
        settings.stderr.line(text_of(known))
    return known.exit_code


def text_of(error: FlowError) -> str:
    return redact_text(f"error[{error.code}]: {error}")


def facts_of(error: FlowError) -> dict[str, Any]:
    """The error as data; `message` is what a person would have read."""
    facts: dict[str, Any] = {
        "code": error.code,
        "message": redact_text(str(error)),
        "next_step": redact_text(error.next_step),
        "exit_code": error.exit_code,
    }
    if error.tried:
        facts["tried"] = [redact_text(place) for place in error.tried]
    if isinstance(error, DeclarationError):
        facts["problems"] = [asdict(problem) for problem in error.problems]
    return facts


def known_error(error: BaseException) -> FlowError:
    if isinstance(error, FlowError):
        return error
    if isinstance(error, click.ClickException):
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "flow"
        return UsageError(error.format_message(), next_step=f"`{command} --help` lists what there is")
    words = " ".join(str(error).split()) or "no message"
    return Unexpected(f"{type(error).__name__}: {words[:500]}")


def _with_advice(error: Unexpected) -> Unexpected:
    kept = f"; the whole error is in {log_file()}" if log_file().exists() else ""
    return Unexpected(
        f"{error.found}\nThis is not an error of the declaration or of the data that ematix-flow knows{kept}.",
        next_step="the same command as `flow --debug ...` prints where it happened; please report it with that",
    )

"""Logs: one structured line per event, on stderr and in `$EMATIX_FLOW_HOME/logs/flow.log`, never with a secret.

An event is a short message; its facts are the `extra` of the logging call:
`log.info("batch", extra={"pipeline": "orders", "batch": 3})`.
"""

from __future__ import annotations

import json
import logging
import os
import re
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Any, TextIO

from ematix_flow.ops.settings import Settings
from ematix_flow.ops.terminal import Stderr
from ematix_flow.secrets import redact_text
from ematix_flow.state.home import home

_PRODUCT = "ematix_flow"
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", "shown"}
_PLAIN = re.compile(r"[^\s\"'=\\]+")
# Spark's Python side and its bridge report every failure again, with a traceback; what happened is told once, by us.
_ECHOES = {"py4j", "pyspark"}
_FILE_BYTES = 10_000_000
_FILES_KEPT = 3


def log_file() -> Path:
    return home() / "logs" / "flow.log"


def logged(pipeline: str, begin: datetime, end: datetime | None) -> Iterator[str]:
    """What the file, and those that were rotated away, still have of a pipeline and a time; oldest first."""
    first, last = _stamp(begin), _stamp(end or datetime.now(UTC))
    of_pipeline = f" pipeline={_quoted(pipeline)}"
    for number in range(_FILES_KEPT, -1, -1):
        file = log_file().with_name(f"flow.log.{number}" if number else "flow.log")
        if file.exists():
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    if first <= line[: len(first)] <= last and f"{of_pipeline} " in f"{line.rstrip()} ":
                        yield line.rstrip()


@contextmanager
def logging_for(settings: Settings) -> Iterator[None]:
    """Send logs and Python warnings where the user looks for them, while a command runs."""
    root, product = logging.getLogger(), logging.getLogger(_PRODUCT)
    levels, show_before = (root.level, product.level), warnings.showwarning
    handlers: tuple[logging.Handler, ...] = (_ToStderr(settings), _ToFile())
    root.setLevel(logging.WARNING)
    product.setLevel(logging.INFO)
    for handler in handlers:
        root.addHandler(handler)
    warnings.showwarning = _logged_warning
    try:
        yield
    finally:
        warnings.showwarning = show_before
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()
        root.setLevel(levels[0])
        product.setLevel(levels[1])


class TextLines(logging.Formatter):
    """`2026-01-31T12:00:00.123Z INFO batch pipeline=orders batch=3`."""

    def format(self, record: logging.LogRecord) -> str:
        facts = "".join(f" {key}={_quoted(value)}" for key, value in _facts(record).items())
        return redact_text(f"{_time(record)} {record.levelname} {_event(record)}{facts}")


class JsonLines(logging.Formatter):
    """The same as one JSON object: ts, level, event and the facts."""

    def format(self, record: logging.LogRecord) -> str:
        line = {"ts": _time(record), "level": record.levelname, "event": _event(record), **_facts(record)}
        return json.dumps({key: _clean(value) for key, value in line.items()}, ensure_ascii=False)


class _ToStderr(logging.Handler):
    """Warnings for a person as `warning: ...`; every event as a structured line with -v or as JSON."""

    def __init__(self, settings: Settings) -> None:
        as_json = settings.log_format == "json"
        super().__init__(logging.INFO if settings.verbose or as_json else logging.WARNING)
        self._stderr: Stderr = settings.stderr
        self._for_people = not as_json and not settings.verbose
        self.setFormatter(JsonLines() if as_json else TextLines())

    def filter(self, record: logging.LogRecord) -> bool:
        # By the file that logs, because py4j uses the root logger, too.
        echo = record.name.partition(".")[0] in _ECHOES or not _ECHOES.isdisjoint(Path(record.pathname).parts)
        return not echo and not getattr(record, "shown", False)

    def emit(self, record: logging.LogRecord) -> None:
        if self._for_people:
            facts = "".join(f" {key}={_quoted(value)}" for key, value in _facts(record).items() if key != "traceback")
            self._stderr.line(redact_text(f"{record.levelname.lower()}: {_event(record)}{facts}"))
        else:
            self._stderr.line(self.format(record))


class _ToFile(RotatingFileHandler):
    """Opened with the first line, so that a command that has nothing to log leaves no file behind."""

    def __init__(self) -> None:
        super().__init__(log_file(), maxBytes=_FILE_BYTES, backupCount=_FILES_KEPT, encoding="utf-8", delay=True)
        self.setFormatter(TextLines())

    def _open(self) -> Any:
        Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
        return super()._open()

    def emit(self, record: logging.LogRecord) -> None:
        # Several processes share the file; when another one has rotated it, go on in the new one.
        if self.stream is not None and not _is_file_at(self.stream, Path(self.baseFilename)):
            self.stream.close()
            self.stream = None
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        """A full or read-only disk must not end a pipeline that can still work."""


def _is_file_at(stream: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(stream.fileno()), path.stat())
    except OSError:
        return False


def _logged_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """A Python warning as a warning of ours: what it says, without the line of code that said it."""
    del category, filename, lineno, file, line
    logging.getLogger(f"{_PRODUCT}.warnings").warning("%s", message)


def _event(record: logging.LogRecord) -> str:
    return " ".join(record.getMessage().split())


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts = {key: value for key, value in vars(record).items() if key not in _STANDARD}
    if record.exc_info and record.exc_info[1] is not None:
        facts["traceback"] = "".join(traceback.format_exception(record.exc_info[1]))
    return facts


def _time(record: logging.LogRecord) -> str:
    return _stamp(datetime.fromtimestamp(record.created, UTC))


def _stamp(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _quoted(value: Any) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def _clean(value: Any) -> Any:
    return value if isinstance(value, int | float | bool) or value is None else redact_text(str(value))

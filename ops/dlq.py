"""Where the dead letters of pipelines are, which ones a user means, and how they look to a person and to a program."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import unquote

from ematix_flow.errors import UsageError
from ematix_flow.ops.discovery import Found, find_one, survey
from ematix_flow.ops.output import as_json
from ematix_flow.specs import StateStore
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters
from ematix_flow.state.home import DEAD_LETTERS, dead_letters_of, home
from ematix_flow.state.memory import Memory

_DURATION = re.compile(r"(\d+)([smhdw])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_SHORT_ID = 12
_SHORT_TEXT = 80


@dataclass(frozen=True)
class Box:
    """The dead letters of one pipeline, which are there once it ran."""

    pipeline: str
    store: StateStore

    @contextmanager
    def opened(self) -> Iterator[DeadLetters]:
        with closing(Memory(self.pipeline, self.store)) as memory, closing(memory.dead_letters()) as letters:
            yield letters

    @property
    def place(self) -> str:
        """For a person."""
        if self.store.kind in {"postgres", "delta"}:
            return f"{self.store.kind} state store of {self.pipeline}"
        return str(dead_letters_of(self.pipeline, self.store.path))


def all_boxes(modules: Sequence[str] = ()) -> list[Box]:
    """Those below `$EMATIX_FLOW_HOME/state`, and those of the pipelines that are declared here."""
    here = (unquote(path.parent.name) for path in sorted((home() / "state").glob(f"*/{DEAD_LETTERS}")))
    declared = (spec for place in survey(modules) for spec in place.specs)
    boxes = [*(Box(name, StateStore()) for name in here), *map(_box, filter(_keeps_letters, declared))]
    return list({(box.pipeline, box.place): box for box in boxes}.values())


def box_of(wanted: str, modules: Sequence[str] = (), pipeline: str | None = None) -> Box:
    """By NAME or FILE.toml. A pipeline that is no longer declared may still have letters."""
    try:
        spec = find_one(wanted, modules=modules, pipeline=pipeline)
    except UsageError:
        if wanted.endswith(".toml") or not dead_letters_of(wanted).exists():
            raise
        return Box(wanted, StateStore())
    if not _keeps_letters(spec):
        raise UsageError(
            f"pipeline {spec.name!r} has an in_memory state store, which keeps no dead letters when the process ends",
            next_step="read them in the dead_letter_topic, or declare another kind in [state_store]",
        )
    return _box(spec)


def _keeps_letters(spec: Found) -> bool:
    return spec.state_store.kind != "in_memory"


def _box(spec: Found) -> Box:
    return Box(spec.name, spec.state_store)


def find_letter(id: str, boxes: Iterable[Box]) -> tuple[Box, DeadLetter]:
    """By an id, or by the beginning of one if no other begins like it."""
    found: list[tuple[Box, DeadLetter]] = []
    searched: list[str] = []
    for box in boxes:
        with box.opened() as letters:
            found += [(box, letter) for letter in letters.starting_with(id)]
        searched.append(box.place)
        if any(letter.id == id for _, letter in found):
            # A whole id: no other place needs to be asked, which may be far away.
            break
    if not found:
        raise UsageError(
            f'there is no dead letter "{id}"',
            tried=searched or [f"{home() / 'state'}: no pipeline here has dead letters"],
            next_step="`flow dlq list NAME` shows those of a pipeline; name its file or --module if it is elsewhere",
        )
    if len(found) > 1:
        ids = ", ".join(f"{letter.id} of {box.pipeline}" for box, letter in found)
        raise UsageError(f'several dead letters begin with "{id}": {ids}', next_step="write more of the id")
    return found[0]


def moment(text: str) -> datetime:
    """`7d` ago, or a date or time as ISO 8601; UTC unless it says otherwise."""
    ago = _DURATION.fullmatch(text)
    try:
        if ago:
            return datetime.now(UTC) - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        given = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise UsageError(
            f'found "{text}", which is neither a duration nor a time',
            next_step='write for example "90s", "12h", "7d", "2026-01-31" or "2026-01-31T08:00:00Z"',
        ) from None
    return given if given.tzinfo else given.replace(tzinfo=UTC)


def position_text(text: str | None) -> str | None:
    """A duration is the time so long ago; everything else is as it was."""
    return moment(text).isoformat() if text is not None and _DURATION.fullmatch(text) else text


def facts_of(letter: DeadLetter) -> dict[str, Any]:
    """The letter as data; the payload as text only if it is text."""
    facts = {"id": letter.id, **asdict(letter)}
    for name in ("key", "arrived"):
        del facts[name]
    payload = letter.payload
    facts["payload"] = None if payload is None else _as_text(payload)
    facts["payload_base64"] = None if payload is None else base64.b64encode(payload).decode()
    return facts


def letters_json(letters: DeadLetter | Iterable[DeadLetter]) -> str:
    """What a terminal could take for a command is escaped, which JSON itself does for only some of it."""
    data = facts_of(letters) if isinstance(letters, DeadLetter) else [facts_of(letter) for letter in letters]
    return "".join(c if c == "\n" or c.isprintable() else _utf16(c) for c in as_json(data))


def letter_rows(letters: Iterable[DeadLetter]) -> list[list[str]]:
    """One line for each, with as much of the id as tells them apart and the beginning of the rest."""
    rows = [["ID", "STATUS", "ATTEMPT", "STAGE", "CODE", "FAILED AT", "ERROR"]]
    for one in letters:
        failed_at = one.failed_at.strftime("%Y-%m-%d %H:%M:%S")
        error = printable(one.error)
        error = error if len(error) <= _SHORT_TEXT else f"{error[:_SHORT_TEXT]}..."
        rows.append(
            [one.id[:_SHORT_ID], one.status, str(one.attempt), one.stage, one.error_code, failed_at, error]
        )  # fmt: skip
    return rows


def letter_text(letter: DeadLetter) -> list[list[str]]:
    facts = {"id": letter.id, **asdict(letter)}
    order = (
        "id", "pipeline", "status", "attempt", "stage", "error_code", "error", "failed_at", "source", "position",
        "event_ts", "payload_format",
    )  # fmt: skip
    rows = [[name, printable(_words(facts[name]))] for name in order]
    size = "none" if letter.payload is None else f"{len(letter.payload):,} bytes"
    return [*rows, ["payload", size]]


def printable(text: str | bytes) -> str:
    """With everything escaped that is no visible character, so that no row can write to the terminal."""
    shown = text if isinstance(text, str) else text.decode("utf-8", errors="backslashreplace")
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in shown)


def _as_text(payload: bytes) -> str | None:
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _words(value: object) -> str:
    return "" if value is None else value.isoformat(sep=" ") if isinstance(value, datetime) else str(value)


def _utf16(character: str) -> str:
    code = ord(character)
    pair = [code] if code < 0x10000 else [0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF)]
    return "".join(f"\\u{unit:04x}" for unit in pair)

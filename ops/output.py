"""Results as people read them and as programs do."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])


def format_option(function: F) -> F:
    """`--format text|json`, for every command that prints data."""
    option = click.option(
        "--format",
        "output_format",
        type=click.Choice(["text", "json"]),
        default="text",
        show_default=True,
        help="How the result, or the error, is printed on stdout.",
    )
    return option(function)


def as_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def table(rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Columns as wide as their widest cell; the last one as long as it likes."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    return "\n".join(indent + line for line in lines)


def counted(number: int, thing: str) -> str:
    """`1 row`, `2,000 rows`, `3 batches`."""
    plural = f"{thing}es" if thing.endswith("ch") else f"{thing}s"
    return f"{number:,} {thing if number == 1 else plural}"


def by_name(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.items())


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else str(value)

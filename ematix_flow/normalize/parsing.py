"""Normalizers that turn text into a time, a number or a boolean, and what happens when they cannot.

`on_failure="null"` makes bad text NULL; `"error"` makes the row a transform error; `"default"` puts `default=` in its
place, and in the place of NULL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Literal as OneOf
from typing import get_args

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.normalize.chain import Normalizer
from ematix_flow.normalize.formats import DEFAULT_DATE_FORMATS, DEFAULT_TIMESTAMP_FORMATS, chosen_formats
from ematix_flow.normalize.literals import Literal, literal, text_literal
from ematix_flow.problems import near
from ematix_flow.types import Numeric

OnFailure = OneOf["null", "error", "default"]


def parse_timestamp(
    format: str | None = None,
    *,
    formats: Sequence[str] | None = None,
    on_failure: OnFailure = "null",
    default: Literal | None = None,
) -> Normalizer:
    """Read a moment in one of several formats, the first that fits; without an offset it is in the session's zone.

    A format is a Postgres template (`YYYY-MM-DD HH24:MI:SS`), strftime codes (`%Y-%m-%d`) or a Spark pattern
    (`yyyy-MM-dd`).
    """
    patterns = chosen_formats("parse_timestamp(...)", format, formats, DEFAULT_TIMESTAMP_FORMATS)
    call = _call("parse_timestamp", [format or formats], on_failure, default)
    return _parse_with_patterns(call, "to_timestamp", patterns, on_failure, default)


def parse_date(
    format: str | None = None,
    *,
    formats: Sequence[str] | None = None,
    on_failure: OnFailure = "null",
    default: Literal | None = None,
) -> Normalizer:
    """Read a day in one of several formats, the first that fits. Formats are as in `parse_timestamp`."""
    patterns = chosen_formats("parse_date(...)", format, formats, DEFAULT_DATE_FORMATS)
    call = _call("parse_date", [format or formats], on_failure, default)
    return _parse_with_patterns(call, "to_date", patterns, on_failure, default)


def parse_int(on_failure: OnFailure = "null", default: Literal | None = None) -> Normalizer:
    """Read a 64-bit whole number; white space around it is ignored."""
    return _parse_with_cast(_call("parse_int", [], on_failure, default), "bigint", on_failure, default)


def parse_numeric(p: int, s: int, on_failure: OnFailure = "null", default: Literal | None = None) -> Normalizer:
    """Read a decimal of `p` digits, `s` of them after the point; more of those are rounded, a greater number fails."""
    call = _call("parse_numeric", [p, s], on_failure, default)
    return _parse_with_cast(call, Numeric(p, s).spark_type, on_failure, default)


def parse_bool(
    truthy: Sequence[str] = ("true", "1", "yes", "y"),
    falsy: Sequence[str] = ("false", "0", "no", "n"),
    on_failure: OnFailure = "null",
    default: Literal | None = None,
) -> Normalizer:
    """Read a boolean from lists of words; case and spaces around the word do not matter."""
    call = _call("parse_bool", [tuple(truthy), tuple(falsy)], on_failure, default)
    true_words, false_words = _words(truthy), _words(falsy)
    problems = [
        Problem(key, "no words", allowed="one word or more")
        for key, words in (("truthy", true_words), ("falsy", false_words))
        if not words
    ]
    if both := sorted(set(true_words) & set(false_words)):
        problems.append(Problem("falsy", f"{', '.join(both)} is also in truthy", allowed="each word once"))
    if problems:
        raise DeclarationError(call, problems)
    word_start, word_end = "lower(trim(CAST(", " AS string)))"
    when_true = f"{word_end} IN ({', '.join(map(text_literal, true_words))}) THEN true"
    when_false = f"{word_end} IN ({', '.join(map(text_literal, false_words))}) THEN false"
    tolerant = (f"CASE WHEN {word_start}", f"{when_true} WHEN {word_start}", f"{when_false} END")
    message = text_literal(f"{call}: not one of its words: ")
    strict = (
        *tolerant[:2],
        f"{when_false} WHEN ",
        f" IS NOT NULL THEN raise_error(concat({message}, CAST(",
        " AS string))) END",
    )
    return _with_failure(call, tolerant, strict, on_failure, default)


def _parse_with_patterns(
    call: str, function: str, patterns: list[str], on_failure: OnFailure, default: Literal | None
) -> Normalizer:
    """Numbers are read by their digits. What is a time already is taken as it is."""
    attempts = [(f"try_{function}(CAST(", f" AS string), {text_literal(pattern)})") for pattern in patterns]
    # The last format raises when the others gave up, so bad text fails and NULL stays NULL.
    last_raises = [*attempts[:-1], (f"{function}(CAST(", attempts[-1][1])]
    kind = function.removeprefix("to_")
    tolerant, strict = (_unless_a_time(kind, _first_of(some)) for some in (attempts, last_raises))
    return _with_failure(call, tolerant, strict, on_failure, default)


def _unless_a_time(kind: str, read: tuple[str, ...]) -> tuple[str, ...]:
    is_one = ") IN ('date', 'timestamp', 'timestamp_ntz') THEN CAST(CAST("
    return ("CASE WHEN typeof(", is_one, f" AS string) AS {kind}) ELSE {read[0]}", *read[1:-1], f"{read[-1]} END")


def _first_of(attempts: list[tuple[str, str]]) -> tuple[str, ...]:
    """The pieces of `coalesce(attempt, attempt, ...)`, or of the attempt itself when there is one."""
    if len(attempts) == 1:
        return attempts[0]
    befores = [f"coalesce({attempts[0][0]}"]
    befores += [f"{previous[1]}, {following[0]}" for previous, following in pairwise(attempts)]
    return (*befores, f"{attempts[-1][1]})")


def _parse_with_cast(call: str, spark_type: str, on_failure: OnFailure, default: Literal | None) -> Normalizer:
    ending = f" AS {spark_type})"
    return _with_failure(call, ("try_cast(", ending), ("CAST(", ending), on_failure, default)


def _with_failure(
    call: str, tolerant: tuple[str, ...], strict: tuple[str, ...], on_failure: OnFailure, default: Literal | None
) -> Normalizer:
    _check_failure(call, on_failure, default)
    if on_failure == "error":
        return Normalizer(call, strict)
    if default is None:
        return Normalizer(call, tolerant)
    first, *rest = tolerant
    return Normalizer(call, (f"coalesce({first}", *rest[:-1], f"{rest[-1]}, {literal(default, call)})"))


def _check_failure(call: str, on_failure: OnFailure, default: Literal | None) -> None:
    known = get_args(OnFailure)
    problems = []
    if on_failure not in known:
        problems.append(Problem("on_failure", f"{on_failure!r}", ", ".join(known), near(str(on_failure), known)))
    elif on_failure == "default" and default is None:
        problems.append(Problem("default", 'missing, though on_failure="default"', allowed="a value"))
    elif on_failure != "default" and default is not None:
        problems.append(Problem("default", f'given, though on_failure="{on_failure}"', allowed='on_failure="default"'))
    if problems:
        raise DeclarationError(call, problems)


def _words(words: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(str(word).strip().lower() for word in words))


def _call(name: str, arguments: list[object], on_failure: OnFailure, default: Literal | None) -> str:
    shown = [repr(argument) for argument in arguments if argument is not None]
    shown += [f"on_failure={on_failure!r}"] if on_failure != "null" else []
    shown += [f"default={default!r}"] if default is not None else []
    return f"{name}({', '.join(shown)})"

"""Normalizers for text, numbers, times and NULLs, and the two that take any SQL.

NULL stays NULL in all of them except `default` and `not_null_or`.
"""

from __future__ import annotations

import re
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.normalize.chain import Normalizer, step
from ematix_flow.normalize.literals import Literal, literal, text_literal, whole_number
from ematix_flow.problems import near

WHITESPACE = " \t\n\r\f\v"
TRUNCATION_UNITS = (
    "year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond",
)  # fmt: skip
REGEX_FLAGS = "gims"


def trim() -> Normalizer:
    """Remove spaces at both ends, as SQL's trim does; tabs and line ends stay."""
    return step("trim", (), "trim(", ")")


def lower() -> Normalizer:
    """Lower-case the text."""
    return step("lower", (), "lower(", ")")


def upper() -> Normalizer:
    """Upper-case the text."""
    return step("upper", (), "upper(", ")")


def empty_to_null() -> Normalizer:
    """Turn the empty string into NULL. What is no text cannot be empty, and is left as it is."""
    return step("empty_to_null", (), "nullif(CAST(", " AS string), '')")


def whitespace_to_null() -> Normalizer:
    """Trim white space of every kind at both ends, and turn what is then empty into NULL."""
    return step("whitespace_to_null", (), f"nullif({_TRIM_WHITESPACE}", "), '')")


def replace(old: str, new: str) -> Normalizer:
    """Replace every occurrence of `old`, taken literally, with `new`."""
    return step("replace", (old, new), "replace(", f", {text_literal(old)}, {text_literal(new)})")


def regex_replace(pattern: str, repl: str, flags: str = "g") -> Normalizer:
    r"""Replace every match of a Java regular expression.

    Groups are `$1` or `\1` in `repl`, the whole match `$0` or `\&`; a `$` before anything else is a dollar
    sign. Flags: `g` (every match; must be there), `i` (ignore case), `m` (`^` and `$` at line ends), `s` (dot matches
    line ends).
    """
    unknown = sorted(set(flags) - set(REGEX_FLAGS))
    if unknown or "g" not in flags:
        found = f"{flags!r}" if unknown else f"{flags!r} would replace the first match only"
        problem = Problem("flags", found, allowed='"g", with any of "i", "m", "s"')
        raise DeclarationError(f"regex_replace({pattern!r}, ...)", [problem])
    modes = "".join(flag for flag in "ims" if flag in flags)
    full = f"(?{modes}){pattern}" if modes else pattern
    arguments = (pattern, repl) if flags == "g" else (pattern, repl, flags)
    constants = f"{text_literal(full)}, {text_literal(_java_replacement(repl))}"
    return step("regex_replace", arguments, "regexp_replace(", f", {constants})")


def truncate(n: int) -> Normalizer:
    """Keep the first `n` characters."""
    whole_number(n, f"truncate({n!r})", least=0)
    return step("truncate", (n,), "left(", f", {n})")


def email_normalize() -> Normalizer:
    """Lower-case an address and trim white space around it; whether it is an address is not checked."""
    return step("email_normalize", (), f"lower({_TRIM_WHITESPACE}", "))")


def phone_normalize() -> Normalizer:
    """Keep the digits and a plus sign before the first of them: `(+49) 170-1` becomes `+491701`.

    Text without a digit becomes empty; add `empty_to_null()` to make that NULL.
    """
    return step("phone_normalize", (), "regexp_replace(regexp_replace(", ", '[^0-9+]', ''), '(?<=.)[+]|[+]$', '')")


def to_timezone(tz: str) -> Normalizer:
    """Show a moment as the wall-clock time of a zone (a timestamp without zone)."""
    _check_zone(tz)
    return step("to_timezone", (tz,), f"convert_timezone({text_literal(tz)}, ", ")")


def date_trunc(precision: str) -> Normalizer:
    """Cut a time off to the start of its year, month, hour, ..."""
    if precision.lower() not in TRUNCATION_UNITS:
        suggestion = near(precision, TRUNCATION_UNITS)
        problem = Problem("precision", f"{precision!r}", ", ".join(TRUNCATION_UNITS), suggestion)
        raise DeclarationError(f"date_trunc({precision!r})", [problem])
    return step("date_trunc", (precision,), f"date_trunc({text_literal(precision.lower())}, ", ")")


def round(n: int = 0) -> Normalizer:
    """Round half up to `n` digits after the point; a negative `n` rounds before it."""
    whole_number(n, f"round({n!r})")
    return step("round", (n,), "round(", f", {n})")


def clamp(lo: Literal, hi: Literal) -> Normalizer:
    """Raise smaller values to `lo` and lower greater ones to `hi`."""
    call = f"clamp({lo!r}, {hi!r})"
    low, high = literal(lo, call), literal(hi, call)
    if type(lo) is type(hi) and lo > hi:  # type: ignore[operator]
        raise DeclarationError(call, [Problem("lo", f"{lo!r} is greater than hi, {hi!r}", allowed="lo <= hi")])
    # least and greatest skip NULLs, so alone they would turn NULL into a bound.
    return Normalizer(call, ("if(", " IS NULL, NULL, least(greatest(", f", {low}), {high}))"))


def default(v: Literal) -> Normalizer:
    """Put a value in the place of NULL."""
    return step("default", (v,), "coalesce(", f", {literal(v, 'default(...)')})")


def not_null_or(v: Literal) -> Normalizer:
    """The same as `default`, where "must never be NULL" reads better."""
    return step("not_null_or", (v,), "coalesce(", f", {literal(v, 'not_null_or(...)')})")


def nullif(v: Literal) -> Normalizer:
    """Turn one value into NULL."""
    return step("nullif", (v,), "nullif(", f", {literal(v, 'nullif(...)')})")


def sql(expr: str) -> Normalizer:
    """Any Spark SQL expression; `{col}`, or the bare word `col` when there is no `{col}`, stands for the column.

    The expression is taken as it is: never build it from data.
    """
    pieces = expr.split("{col}") if "{col}" in expr else _split_at_bare_word(expr)
    pieces[0] = f"({pieces[0]}"
    pieces[-1] = f"{pieces[-1]})"
    return step("sql", (expr,), *pieces)


def derive(expr: str) -> Normalizer:
    """Compute the column from other columns with a Spark SQL expression; first in a chain, and the rest follows on it.

    The expression is taken as it is: never build it from data.
    """
    return Normalizer(f"derive({expr!r})", (f"({expr})",), derived=True)


_TRIM_WHITESPACE = f"trim(BOTH {text_literal(WHITESPACE)} FROM "


def _java_replacement(replacement: str) -> str:
    with_groups = re.sub(r"\\([0-9]|&)", lambda m: "$0" if m[1] == "&" else f"${m[1]}", replacement)
    return re.sub(r"(?<!\\)\$(?![0-9{])", r"\\$", with_groups)


def _split_at_bare_word(expression: str) -> list[str]:
    """Cut at each `col` that is neither part of another word nor inside a constant or a quoted name."""
    pieces, rest = [""], 0
    for token in re.finditer(r"'(?:\\.|[^'\\])*'|\"(?:\\.|[^\"\\])*\"|`[^`]*`|\bcol\b", expression):
        if token[0] == "col":
            pieces[-1] += expression[rest : token.start()]
            pieces.append("")
            rest = token.end()
    pieces[-1] += expression[rest:]
    return pieces


def _check_zone(tz: str) -> None:
    if re.fullmatch(r"[+-]\d{2}:\d{2}", tz):
        return
    try:
        ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        zones = available_timezones()
        if zones:  # a machine without a time zone database cannot say which names exist; Spark brings its own
            problem = Problem("tz", f"{tz!r}", 'a zone like "Europe/Berlin" or "+02:00"', near(tz, zones))
            raise DeclarationError(f"to_timezone({tz!r})", [problem]) from None

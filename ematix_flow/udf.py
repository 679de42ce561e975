"""Functions for SQL: `@udf` on a function of Arrow arrays, `@udaf` on a class that accumulates them."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.types import ColumnType, Numeric

TypeName = str | ColumnType | type[ColumnType]
ACCUMULATOR_METHODS = ("update_batch", "merge_batch", "state", "evaluate")

_SPARK_TYPES = (
    "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "string", "binary", "date", "timestamp",
    "timestamp_ntz",
)  # fmt: skip
_ALIASES = {
    "bool": "boolean", "byte": "tinyint", "short": "smallint", "integer": "int", "long": "bigint", "real": "float",
    "text": "string", "varchar": "string", "timestamp_ltz": "timestamp", "decimal": "decimal(10,0)",
    "numeric": "decimal(10,0)", "int8": "tinyint", "int16": "smallint", "int32": "int", "int64": "bigint",
    "uint8": "smallint", "uint16": "int", "uint32": "bigint", "uint64": "decimal(20,0)", "float16": "float",
    "float32": "float", "float64": "double", "utf8": "string", "largeutf8": "string", "utf8view": "string",
    "largebinary": "binary", "binaryview": "binary", "date32": "date", "date64": "date", "halffloat": "float",
    "large_string": "string", "string_view": "string", "large_binary": "binary", "binary_view": "binary",
}  # fmt: skip
_ONLY_IN_ARROW = re.compile(
    r"(?:time(?:32|64)|duration|null|month_interval|day_time_interval|month_day_nano_interval|dictionary"
    r"|(?:sparse|dense)_union|run_end_encoded)\b"
)
_SUGGESTED = (
    *_SPARK_TYPES, "decimal(10,2)", "Boolean", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32",
    "UInt64", "Float32",
    "Float64", "Utf8", "Binary", "Date32", "Timestamp", "Decimal128(10,2)",
)  # fmt: skip


@dataclass(frozen=True)
class ScalarUdf:
    """A function of Arrow arrays that gives one Arrow array of the same length; calling it calls the function."""

    name: str
    args: tuple[str, ...]
    returns: str
    function: Callable[..., Any]

    def __call__(self, *arrays: Any) -> Any:
        return self.function(*arrays)


@dataclass(frozen=True)
class AggregateUdf:
    """A class whose instances accumulate one group each; calling it makes an instance.

    `update_batch(*arrays)` takes rows in, `state()` gives a list with a value per state type, `merge_batch(*states)`
    takes arrays of the states of other instances in, and `evaluate()` gives the result. Values are plain, scalars of
    pyarrow or arrays of length 1.
    """

    name: str
    args: tuple[str, ...]
    state: tuple[str, ...]
    returns: str
    function: type

    def __call__(self) -> Any:
        return self.function()


def udf(
    args: TypeName | Sequence[TypeName], returns: TypeName, name: str | None = None
) -> Callable[[Callable[..., Any]], ScalarUdf]:
    """Declare a function for SQL. Types have Arrow names (`Float64`), Spark names (`double`), or are pyarrow's own."""

    def declare(function: Callable[..., Any]) -> ScalarUdf:
        called = name or str(getattr(function, "__name__", ""))
        problems = _name_problems(called)
        argument_types = _types("args", args, problems)
        (result,) = _types("returns", [returns], problems)
        problems += _arity_problems("args", function, len(argument_types))
        if problems:
            raise DeclarationError(f"udf {called}", problems)
        return ScalarUdf(called, argument_types, result, function)

    return declare


def udaf(
    args: TypeName | Sequence[TypeName],
    state: TypeName | Sequence[TypeName],
    returns: TypeName,
    name: str | None = None,
) -> Callable[[type], AggregateUdf]:
    """Declare an aggregate for SQL and windows on a class with `update_batch`, `merge_batch`, `state`, `evaluate`."""

    def declare(cls: type) -> AggregateUdf:
        called = name or cls.__name__
        problems = _name_problems(called)
        argument_types, state_types = _types("args", args, problems), _types("state", state, problems)
        (result,) = _types("returns", [returns], problems)
        problems += _method_problems(cls, len(argument_types), len(state_types))
        if not state_types:
            problems.append(Problem("state", "empty", allowed="the types of what state() returns"))
        if problems:
            raise DeclarationError(f"udaf {called}", problems)
        return AggregateUdf(called, argument_types, state_types, result, cls)

    return declare


def spark_type(name: TypeName) -> str:
    """A type by its Arrow or Spark name as a Spark DDL string; `DeclarationError` when nobody knows it."""
    if isinstance(name, ColumnType):
        return name.spark_type
    if isinstance(name, type) and issubclass(name, ColumnType) and isinstance(name.spark_type, str):
        return name.spark_type
    text = name.strip() if isinstance(name, str) else str(name) if _is_arrow(name) else ""
    known = _parsed(text)
    if known is None and _ONLY_IN_ARROW.match(text.lower()):
        raise DeclarationError(f"type {text}", [Problem("", f"Spark has no type for Arrow's {text}")])
    if known is None:
        allowed = "Arrow names (Float64, Utf8, Decimal128(10,2)) or Spark names (double, string, array<bigint>)"
        suggestion = _meant(text)
        raise DeclarationError(f"type {name!r}", [Problem("", f"unknown type {name!r}", allowed, suggestion)])
    return known


def _is_arrow(value: object) -> bool:
    """Whether a value is a type of pyarrow, which is not imported for the question."""
    return type(value).__module__.startswith("pyarrow")


def _meant(name: str) -> str:
    if not re.fullmatch(r"\w+", name):  # a nested type is near every other
        return ""
    by_lower = {each.lower(): each for each in _SUGGESTED}
    return by_lower.get(near(name, by_lower), "")


def _parsed(text: str) -> str | None:
    word = text.lower()
    if word in _SPARK_TYPES:
        return word
    if word in _ALIASES:
        return _ALIASES[word]
    if decimal := re.fullmatch(r"(?:numeric|decimal(?:32|64|128|256)?)\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)", word):
        return Numeric(int(decimal[1]), int(decimal[2] or 0)).spark_type
    if re.fullmatch(r"(?:var)?char\(\s*\d+\s*\)", word):
        return "string"
    if moment := re.fullmatch(r"timestamp\(\s*\w+\s*,\s*(.+?)\s*\)", word):
        return "timestamp_ntz" if moment[1] == "none" else "timestamp"
    if re.fullmatch(r"date(?:32|64)\[\w+\]", word):
        return "date"
    if moment := re.fullmatch(r"timestamp\[\w+(,\s*tz=.+)?\]", word):
        return "timestamp" if moment[1] else "timestamp_ntz"
    if re.fullmatch(r"fixed_size_binary\[\d+\]", word):
        return "binary"
    return _parsed_nested(text)


def _parsed_nested(text: str) -> str | None:
    nested = re.fullmatch(r"(\w+)\s*[<(](.*)[>)](?:\[\d+\])?", text, re.DOTALL)
    if not nested:
        return None
    kind, parts = nested[1].lower(), _split(nested[2])
    if kind in ("array", "list", "largelist", "large_list", "fixed_size_list") and len(parts) == 1:
        return _wrapped("array<{}>", [re.sub(r"^\s*\w+\s*:", "", parts[0])])  # Arrow names the items
    if kind == "map" and parts[2:] in ([], [" keys_sorted"]) and len(parts) > 1:
        return _wrapped("map<{},{}>", parts[:2])
    if kind == "struct" and all(re.match(r"\s*\w+\s*:", part) for part in parts):
        names, inner = zip(*(part.split(":", 1) for part in parts), strict=True)
        return _wrapped("struct<" + ",".join(f"{field.strip()}:{{}}" for field in names) + ">", inner)
    return None


def _wrapped(template: str, parts: Sequence[str]) -> str | None:
    inner = [_parsed(part.strip().removesuffix(" not null")) for part in parts]
    return None if None in inner else template.format(*inner)


def _split(text: str) -> list[str]:
    """Cut at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<([") - (letter in ">)]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def _types(key: str, names: TypeName | Sequence[TypeName], problems: list[Problem]) -> tuple[str, ...]:
    """Every type as Spark knows it; what is wrong goes to `problems`, and stands as it was."""
    alone = isinstance(names, str | ColumnType | type) or _is_arrow(names)
    listed: list[Any] = [names] if alone else list(names)  # type: ignore[arg-type]
    found = []
    for place, name in enumerate(listed):
        try:
            found.append(spark_type(name))
        except DeclarationError as error:
            where = key if key == "returns" else f"{key}[{place}]"
            problems += [Problem(where, p.found, p.allowed, p.suggestion) for p in error.problems]
            found.append(str(name))
    return tuple(found)


def _name_problems(name: str) -> list[Problem]:
    valid = re.fullmatch(r"[A-Za-z_]\w*", name)
    return [] if valid else [Problem("name", f"{name!r}", allowed="letters, digits and _, as in SQL")]


def _method_problems(cls: type, arguments: int, states: int) -> list[Problem]:
    missing = [method for method in ACCUMULATOR_METHODS if not callable(getattr(cls, method, None))]
    problems = (
        [Problem("", f"{cls.__name__} has no {', '.join(missing)}", ", ".join(ACCUMULATOR_METHODS))] if missing else []
    )
    problems += _arity_problems("__init__", cls, 0)
    # An unbound method takes the instance as well.
    counts = {"update_batch": arguments, "merge_batch": states, "state": 0, "evaluate": 0}
    for method, count in counts.items():
        if method not in missing:
            problems += _arity_problems(method, getattr(cls, method), count, bound=1)
    return problems


def _arity_problems(key: str, function: Callable[..., Any], count: int, bound: int = 0) -> list[Problem]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin that does not say what it takes
        return []
    try:
        signature.bind(*[None] * (count + bound))
    except TypeError:
        arrays = "1 array" if count == 1 else f"{count} arrays"
        return [
            Problem(key, f"the function takes {signature}", allowed=f"a function of {arrays}, by the declared types")
        ]
    return []

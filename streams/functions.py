"""Python functions in SQL: each `@udf` runs over Arrow arrays in Spark's workers; a row that it raises for fails alone.

Three functions of Spark's make one of the user's: a Python one that gives value and error of each row and never raises,
a SQL one that gives the value or raises the error, and one with the user's name that casts arguments and calls both.
Spark puts the two in SQL into the plan of whoever calls them.
"""

from __future__ import annotations

import pickle
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from ematix_flow.errors import FlowError
from ematix_flow.udf import AggregateUdf, ScalarUdf
from ematix_flow.windows.aggregates.accumulated import Accumulated

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_PYTHON, _VALUE = "_flow_python_", "_flow_value_"


class BadFunction(FlowError):
    """A function that SQL cannot call."""

    code = "bad-function"
    exit_code = 2


def register(udfs: Sequence[ScalarUdf], session: SparkSession) -> None:
    """Make the functions callable from the SQL of a session, by their names in any case."""
    if udfs:
        _check(udfs, session)
    for udf in udfs:
        _register_python(udf, session)
        python, value = f"{_PYTHON}{udf.name}", f"{_VALUE}{udf.name}"
        rows = f"STRUCT<value: {udf.returns}, error: STRING>"
        _create(session, value, f"r {rows}", udf.returns, "IF(r.error IS NULL, r.value, raise_error(r.error))")
        names = [f"argument_{number}" for number in range(1, len(udf.args) + 1)]
        arguments = ", ".join(f"{name} {kind}" for name, kind in zip(names, udf.args, strict=True))
        _create(session, udf.name, arguments, udf.returns, f"{value}({python}({', '.join(names)}))")


def register_aggregates(udafs: Sequence[AggregateUdf], sql: str | None, session: SparkSession) -> None:
    """Make those that the SQL calls callable; windows may have others, also by names that are Spark's."""
    called = [udaf for udaf in udafs if re.search(rf"\b{udaf.name}\s*\(", sql or "", re.IGNORECASE)]
    if called:
        _check(called, session)
    for udaf in called:
        _register_aggregate(udaf, session)


def _create(session: SparkSession, name: str, arguments: str, returns: str, body: str) -> None:
    # Spark would take it for as free as Python, and refuse it in aggregates.
    session.sql(
        f"CREATE OR REPLACE TEMPORARY FUNCTION {name}({arguments}) RETURNS {returns} DETERMINISTIC RETURN {body}"
    )


def _check(udfs: Sequence[ScalarUdf | AggregateUdf], session: SparkSession) -> None:
    for name, count in Counter(udf.name.lower() for udf in udfs).items():
        if count > 1:
            raise BadFunction(
                f"{count} functions are called {name}, and SQL does not tell upper from lower case",
                next_step="give one of them another name with @udf(..., name=...)",
            )
    built_in = {row[0] for row in session.sql("SHOW SYSTEM FUNCTIONS").collect()}
    for udf in udfs:
        if udf.name.lower() in built_in:
            raise BadFunction(
                f"Spark has a function {udf.name} of its own, which would be called instead",
                next_step="give yours another name with @udf(..., name=...)",
            )
        if not udf.args:
            raise BadFunction(
                f"function {udf.name} takes no array, so it cannot know how many rows to give",
                next_step="give it an argument, for example a column that it ignores",
            )


def _register_python(udf: ScalarUdf, session: SparkSession) -> None:
    from pyspark.sql.pandas.functions import arrow_udf
    from pyspark.sql.pandas.types import to_arrow_type
    from pyspark.sql.types import StructType

    result = cast(StructType, StructType.fromDDL(f"value {udf.returns}, error string"))
    name, function = udf.name, _Portable(udf.function)
    kind = to_arrow_type(result["value"].dataType, timezone="UTC")
    # A lambda, because Spark would read type hints as a choice among its own kinds of function.
    python = arrow_udf(lambda *arrays: _rows(name, function, kind, arrays), result)  # type: ignore[call-overload]
    # Spark would repeat a deterministic call wherever its result is used, and move errors out of what guards them.
    python = python.asNondeterministic()
    try:
        session.udf.register(f"{_PYTHON}{udf.name}", python)
    except (pickle.PicklingError, TypeError) as error:
        raise BadFunction(
            f"function {udf.name} cannot be sent to Spark's workers: {error}",
            next_step="let it open files, locks and connections itself instead of using those of its module",
        ) from error


def _register_aggregate(udaf: AggregateUdf, session: SparkSession) -> None:
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    whole = Accumulated(udaf, udaf.args)

    def over(*arrays):  # type: ignore[no-untyped-def]
        return whole.over(*arrays)

    # By these Spark chooses among its kinds of function; written as hints, they would be texts that it cannot read.
    over.__annotations__ = {"arrays": pa.Array, "return": pa.Scalar}
    try:
        session.udf.register(udaf.name, arrow_udf(over, udaf.returns))  # type: ignore[call-overload]
    except (pickle.PicklingError, TypeError) as error:
        raise BadFunction(
            f"class {udaf.name} cannot be sent to Spark's workers: {error}",
            next_step="let it open files, locks and connections itself instead of using those of its module",
        ) from error


class _Portable:
    """A function that arrives in a worker as itself, with the places from which its modules can be imported."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arrays: Any) -> Any:
        return self._function(*arrays)

    def __reduce__(self) -> tuple[Any, ...]:
        from pyspark import cloudpickle

        return _unpacked, (list(sys.path), cloudpickle.dumps(self._function))  # type: ignore[no-untyped-call]


def _unpacked(path: list[str], function: bytes) -> Any:
    sys.path.extend(place for place in path if place not in sys.path)
    return pickle.loads(function)  # noqa: S301 - written by `_Portable` in the driver


class _WrongResult(Exception):
    """What the function gave is no column for its rows; trying fewer of them would not help."""


def _rows(name: str, function: Callable[..., Any], kind: pa.DataType, arrays: Sequence[pa.Array]) -> pa.StructArray:
    import pyarrow as pa

    values, errors = zip(*_pieces(name, function, kind, arrays), strict=True)
    fields = [pa.field("value", kind), pa.field("error", pa.string())]
    return pa.StructArray.from_arrays([pa.concat_arrays(values), pa.concat_arrays(errors)], fields=fields)


def _pieces(
    name: str, function: Callable[..., Any], kind: pa.DataType, arrays: Sequence[pa.Array]
) -> Iterator[tuple[pa.Array, pa.Array]]:
    """Values and errors of the rows, in order. Where the function raises it is tried with halves, until the single rows
    that it raises for are known."""
    import pyarrow as pa

    size = len(arrays[0])
    try:
        values = _column(function(*arrays), size, kind)
    except _WrongResult as error:
        yield pa.nulls(size, kind), pa.repeat(f"udf {name}: {error}", size)
    except Exception as error:  # noqa: BLE001 - whatever a user's function raises is the error of a row
        if size > 1:
            for begin, length in ((0, size // 2), (size // 2, size - size // 2)):
                yield from _pieces(name, function, kind, [array.slice(begin, length) for array in arrays])
        else:
            yield pa.nulls(size, kind), pa.repeat(f"udf {name}: {type(error).__name__}: {error}", size)
    else:
        yield values, pa.nulls(size, pa.string())


def _column(result: Any, size: int, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if isinstance(result, pa.ChunkedArray):
        result = result.combine_chunks()
    if not isinstance(result, pa.Array):
        raise _WrongResult(f"it returned {type(result).__name__}, not an Arrow array")
    if len(result) != size:
        raise _WrongResult(f"it returned {len(result)} values for {size} rows")
    try:
        return result if result.type == kind else result.cast(kind)
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise _WrongResult(f"it returned {result.type}, which cannot become {kind}") from error

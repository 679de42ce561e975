"""Errors of a running pipeline: what Spark and Python raised, as `FlowError`s that say where and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import clear_frames

from ematix_flow.errors import FlowError
from ematix_flow.state.kernel import StateVersion
from ematix_flow.streams.sources.database.base import SourceRefused
from ematix_flow.streams.sources.delta import SourceChanged
from ematix_flow.streams.sources.kafka_topics import DataLost
from ematix_flow.windows.aggregates.errors import WindowFailed


class BadRowError(FlowError):
    """A row that cannot be used stopped the pipeline, because `on_error` is `fail`. Nothing of its batch is visible."""

    code = "bad-row"

    def __init__(self, *, stage: str, position: str, reason: str, others: int) -> None:
        self.stage, self.position, self.reason = stage, position, reason
        more = f" (and {others} more in this batch)" if others else ""
        super().__init__(
            f"a row failed in {stage}: {position + ': ' if position else ''}{reason}{more}; "
            "nothing of its batch was written",
            next_step='correct the input, or set on_error = "dlq" to keep such rows aside or "drop" to count them',
        )


class TransformFailed(FlowError):
    """The SQL raised an error while it ran over the rows of a batch."""

    code = "transform-failed"


class BatchFailed(FlowError):
    """A batch failed for a reason that is not known better; it is planned again with the same rows."""

    code = "batch-failed"
    transient = True


class FileUnreadable(BatchFailed):
    """A file of the source is not what its format says, or was not complete when it was read."""

    code = "file-unreadable"


class SparkRefused(FlowError):
    """Spark did not accept the plan of the pipeline."""

    code = "spark-refused"


def let_go(error: BaseException | None) -> None:
    """Spark knows the function of a batch until the process ends, and with it what it raised. The frames in there would
    hold on to the connections of the batch, of which drivers complain on stderr when Python ends."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@contextmanager
def spark_errors_in_words() -> Iterator[None]:
    """What Spark raises while a pipeline is being planned, as a `FlowError`."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise SparkRefused(
            f"Spark does not accept the pipeline: {spark_words(error)[1]}",
            next_step="`flow --debug ...` shows the whole error",
        ) from error


def explained(error: BaseException, step: str, batch: int) -> FlowError:
    """The `FlowError` for whatever ended a batch."""
    from pyspark.errors import AnalysisException

    if isinstance(error, FlowError):
        return error
    if refused := SourceRefused.found_in(error):
        return refused
    words = spark_words(error)[1]
    if is_of_a_row(error):
        return TransformFailed(
            f"batch {batch}: a row failed in the transform: {words}",
            next_step="guard the expression, for example with try_cast or try_divide",
        )
    if isinstance(error, AnalysisException):
        return SparkRefused(
            f"batch {batch}: Spark does not accept the rows in step {step}: {words}",
            next_step="correct the transform or the target; what Spark says names the column",
        )
    if file := _UNREADABLE.search(words):
        return FileUnreadable(
            f"batch {batch}: {file[1]} cannot be read as the format of its source",
            next_step="put one that can be read in its place, an empty one will do; then the pipeline goes on",
        )
    for kind in (SourceChanged, DataLost, StateVersion, WindowFailed):
        if known := kind.found_in(error):
            return known
    return BatchFailed(
        f"batch {batch} failed in step {step}: {words}",
        next_step="the batch is planned again when the pipeline runs next; `flow --debug ...` shows the whole error",
    )


def is_of_a_row(error: BaseException) -> bool:
    """Whether a value of some row is to blame."""
    return spark_words(error)[0] in _ROW_CONDITIONS


def is_slow_start(error: BaseException) -> bool:
    """Whether Spark gave up on a Python process before it had begun."""
    return "Python worker failed to connect back" in str(error)


def spark_words(error: BaseException) -> tuple[str, str]:
    """Spark's error condition, if there is one, and the first sentence of its message; or what a worker raised."""
    text = str(error)
    found = re.search(r"\[([A-Z][A-Z0-9_.]+)\]\s*([^\n]*)", text)
    if (found is None or found.group(1) == "PYTHON_EXCEPTION") and (raised := _RAISED.findall(text)):
        return "", raised[-1]
    if found:
        return found.group(1), f"[{found.group(1)}] {found.group(2).strip()}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return "", f"{type(error).__name__}: {lines[0] if lines else 'no message'}"


# What ended a traceback of a Python worker: `ValueError: no such day`.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t]+.*\n)+(\S.*)$", re.MULTILINE)

_UNREADABLE = re.compile(r"^\[FAILED_READ_FILE\.(?:NO_HINT|CANNOT_READ_FILE_FOOTER)\].* file:/*(/\S.*?)\.?\s+SQLSTATE")

# What a value can do wrong in an expression, in Spark's words.
_ROW_CONDITIONS = frozenset({
    "CAST_INVALID_INPUT", "CAST_OVERFLOW", "DIVIDE_BY_ZERO", "ARITHMETIC_OVERFLOW", "BINARY_ARITHMETIC_OVERFLOW",
    "NUMERIC_VALUE_OUT_OF_RANGE", "NUMERIC_VALUE_OUT_OF_RANGE.WITH_SUGGESTION", "CANNOT_PARSE_TIMESTAMP",
    "INVALID_ARRAY_INDEX", "INVALID_ARRAY_INDEX_IN_ELEMENT_AT", "MAP_KEY_DOES_NOT_EXIST", "INVALID_INDEX_OF_ZERO",
    "DATETIME_OVERFLOW", "INTERVAL_ARITHMETIC_OVERFLOW", "USER_RAISED_EXCEPTION", "REMAINDER_BY_ZERO",
    "CONVERSION_INVALID_INPUT", "INVALID_URL", "DATETIME_FIELD_OUT_OF_BOUNDS",
})  # fmt: skip

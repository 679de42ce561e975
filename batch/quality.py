"""Whether a target is as it is expected to be after a load, asked in its own database."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.batch.live import Live, opened
from ematix_flow.config import connect
from ematix_flow.errors import FlowError, NotBuilt
from ematix_flow.expectations import COUNT, FRESH, ROWS, Checks, Expectation
from ematix_flow.jobs import BatchPipeline
from ematix_flow.secrets import redact_text
from ematix_flow.specs import PipelineSpec, Target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = logging.getLogger(__name__)


class QualityFailed(FlowError):
    """A target does not meet what is expected of it."""

    code = "quality-failed"


def check_quality(
    pipeline: BatchPipeline, specs: Sequence[PipelineSpec], spark: SparkSession | None
) -> tuple[str, ...]:
    """In words, what is not as expected. Raises if that makes the run a failure."""
    expected, job = [*pipeline.expected], pipeline.job
    if job.freshness_sla is not None and job.freshness_column is not None:
        expected += Checks().freshness(job.freshness_column, within=job.freshness_sla).found
    if not expected:
        return ()
    broken = [words for spec in specs for target in spec.targets for words in _broken(target, expected, spark)]
    if broken and job.on_quality_failure == "fail":
        raise QualityFailed(
            f'pipeline "{job.name}": {"; ".join(broken)}',
            next_step="correct the data or the expectations; the rows themselves were written",
        )
    for words in broken:
        _log.warning("not as expected", extra={"pipeline": job.name, "expectation": words})
    return tuple(broken)


def _broken(target: Target, expected: Sequence[Expectation], spark: SparkSession | None) -> list[str]:
    if target.table is None:
        raise NotBuilt(f"expectations on {target.kind!r}", instead="tables of databases and of Delta can be asked")
    held = {name.lower() for name in target.table.definition.column_names} if target.table.definition else set()
    # Several targets of one pipeline have different columns.
    mine = [one for one in expected if not one.column or not held or one.column.lower() in held]
    found = [(one, _checked(one, target, spark)) for one in mine]
    return [f"{target.table.full_name}: {one.name}: {words}" for one, words in found if words]


def _checked(one: Expectation, target: Target, spark: SparkSession | None) -> str:
    """What is wrong, in words; an empty text if nothing is. What cannot be checked is not as expected."""
    try:
        with opened(connect(target.connection), spark) as live:
            return _finding(one, live, target)
    except FlowError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the driver of the database raises
        return f"cannot be checked: {redact_text((str(error).splitlines() or [type(error).__name__])[0])}"


def _finding(one: Expectation, live: Live, target: Target) -> str:
    # Of a history only what is in force counts.
    current = " WHERE is_current" if target.mode == "scd2" else ""
    rows = f"(SELECT * FROM {live.located(target)}{current}) AS t"
    column = live.quoted(one.column)

    def asked(what: str, where: str = "") -> Any:
        ((value,),) = live.execute(f"SELECT {what} FROM {rows}{where}")
        return value

    if one.kind == COUNT:
        number = asked("COUNT(*)")
        fits = (one.at_least is None or number >= one.at_least) and (one.at_most is None or number <= one.at_most)
        return "" if fits else f"{number} rows"
    if one.kind == FRESH:
        return _staleness(asked(f"MAX({column})"), one)
    if one.kind == ROWS:
        values = [live.literal(value) for value in one.values]
        if one.values and all(isinstance(value, int | float | Decimal) for value in one.values):
            column = live.as_number(column)
        regex = live.matches.format(column, *values) if one.condition == "{regex}" else ""
        condition = one.condition.format(*values, column=column, regex=regex)
        number = asked("COUNT(*)", f" WHERE NOT ({condition})")
        return f"{number} rows do not meet it" if number else ""
    number = asked(f"COUNT({column}) - COUNT(DISTINCT {column})")
    return f"{number} values are there more than once" if number else ""


def _staleness(newest: Any, one: Expectation) -> str:
    if newest is None:
        return "there is no value"
    if not isinstance(newest, datetime):  # a text of SQLite, or a day
        newest = datetime.fromisoformat(str(newest))
    age = datetime.now(UTC) - (newest if newest.tzinfo else newest.replace(tzinfo=UTC))
    assert one.within is not None
    return f"the newest value is {newest:%Y-%m-%d %H:%M:%S}" if age > one.within else ""

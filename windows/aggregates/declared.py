"""From the declared aggregations to results; whatever does not fit the columns of the rows is told at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ematix_flow.errors import DeclarationError, Problem
from ematix_flow.problems import near
from ematix_flow.specs.window import AGGREGATES, BY_ANOTHER, Aggregation
from ematix_flow.state.kernel import TIME
from ematix_flow.windows.aggregates import kinds
from ematix_flow.windows.aggregates.accumulated import Accumulated
from ematix_flow.windows.aggregates.arrow_types import arrow_type
from ematix_flow.windows.aggregates.kinds import KINDS, Given, Made
from ematix_flow.windows.aggregates.pieces import Result

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.udf import AggregateUdf


def results_of(
    wanted: Sequence[Aggregation], schema: pa.Schema, udafs: Sequence[AggregateUdf], event_time: str
) -> list[Result]:
    """One for each aggregation; a `DeclarationError` with all problems, if there are any."""
    reader = _Reader(schema, {udaf.name.lower(): udaf for udaf in udafs}, event_time)
    results = [reader.result(each, f"aggregations[{number}]") for number, each in enumerate(wanted)]
    if reader.problems:
        raise DeclarationError("[transform.window]", reader.problems)
    return [result for result in results if result is not None]


@dataclass(frozen=True)
class _Reader:
    schema: pa.Schema
    udafs: Mapping[str, AggregateUdf]
    event_time: str
    problems: list[Problem] = field(default_factory=list)

    def result(self, wanted: Aggregation, at: str) -> Result | None:
        import pyarrow as pa

        udaf = None if wanted.agg in KINDS else self.udafs.get(wanted.agg.lower())
        made: Made | None = None
        if wanted.agg in KINDS:
            made = self._built_in(wanted, at)
        elif udaf:
            made = self._accumulated(wanted, udaf, at)
        else:
            known = [*AGGREGATES, *(each.name for each in self.udafs.values())]
            self._wrong(f"{at}.agg", f'unknown aggregate "{wanted.agg}"', ", ".join(known), near(wanted.agg, known))
        if made is None:
            return None
        kind, pieces, finish = made
        return Result(pa.field(wanted.as_, kind), pieces, finish, self._words(wanted, udaf))

    def _built_in(self, wanted: Aggregation, at: str) -> Made | None:
        kind = KINDS[wanted.agg]
        columns: tuple[tuple[str, pa.DataType] | None, ...] = ()
        if wanted.column is not None:
            by_another = wanted.agg in BY_ANOTHER and wanted.mode is not None
            takes = kinds.ANYTHING if by_another else kind.takes
            columns = (self._column(wanted, f"{at}.column", wanted.column, takes),)
            if by_another and wanted.mode:
                columns = (*columns, self._column(wanted, f"{at}.mode", wanted.mode, kind.takes))
        if None in columns:
            return None
        return kind.make(Given(wanted, *(part for column in columns if column for part in column)))

    def _accumulated(self, wanted: Aggregation, udaf: AggregateUdf, at: str) -> Made | None:
        names = [name.strip() for name in (wanted.column or "").split(",")] if wanted.column else []
        if len(names) != len(udaf.args):
            found = f"found {len(names)} columns, and {udaf.name} takes {len(udaf.args)}"
            self._wrong(f"{at}.column", found, f"columns for {', '.join(udaf.args)}, separated by commas")
            return None
        columns = [self._column(wanted, f"{at}.column", name, kinds.ANYTHING) for name in names]
        for column, name, argument in zip(columns, names, udaf.args, strict=True):
            if column and not _casts(column[1], arrow_type(argument)):
                found = f'found "{name}", which is {column[1]}; {udaf.name} takes {argument}'
                self._wrong(f"{at}.column", found)
                return None
        if wanted.mode is not None:
            self._wrong(f"{at}.mode", f'found "{wanted.mode}", which has no meaning for {wanted.agg}')
            return None
        if None in columns:
            return None
        piece = Accumulated(udaf, tuple(column[0] for column in columns if column))
        return arrow_type(udaf.returns), (piece,), piece.evaluate

    def _column(self, wanted: Aggregation, at: str, name: str, takes: str) -> tuple[str, pa.DataType] | None:
        """A column as it is called in the rows, with its type."""
        import pyarrow as pa

        place = self.schema.get_field_index(name)
        if place < 0 and name != self.event_time:
            known = self.schema.names
            self._wrong(at, f'there is no column "{name}"', ", ".join(known), near(name, known))
            return None
        moment = pa.timestamp("us", "UTC")
        type = self.schema.types[place] if place >= 0 else moment
        if not kinds.fits(type, takes):
            fitting = ", ".join(field.name for field in self.schema if kinds.fits(field.type, takes))
            found = f'found "{name}", which is {type}; {wanted.agg} takes {takes}'
            self._wrong(at, found, fitting)
            return None
        return (TIME if name == self.event_time and type == moment else name), type

    def _words(self, wanted: Aggregation, udaf: AggregateUdf | None) -> str:
        """Whatever partial results depend on."""
        names = [name.strip() for name in wanted.column.split(",")] if wanted.column and udaf else [wanted.column or ""]
        known = {field.name: str(field.type) for field in self.schema}
        given = [f"{name} {known.get(name, '')}".strip() for name in names if name]
        if wanted.mode:
            decider = known.get(wanted.mode, "") if wanted.agg in BY_ANOTHER else ""
            given.append(f"mode {wanted.mode} {decider}".strip())
        if wanted.max_distinct_values_per_group and wanted.agg != "count_distinct":
            # Only a collection is cut off; what is counted is all there, so that the limit of it can be raised.
            given.append(f"at most {wanted.max_distinct_values_per_group}")
        if udaf:
            given.append(f"state {' '.join(udaf.state)}")
        return f"{wanted.as_} = {wanted.agg}({', '.join(given)})"

    def _wrong(self, key: str, found: str, allowed: str = "", suggestion: str = "") -> None:
        self.problems.append(Problem(key, found, allowed, suggestion))


def _casts(given: pa.DataType, wanted: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        pa.nulls(0, given).cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError):
        return False
    return True

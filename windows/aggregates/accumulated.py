"""Aggregates of a user's own: one instance of a `@udaf` class per group, kept as the arrays of its state."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ematix_flow.udf import AggregateUdf
from ematix_flow.windows.aggregates.arrow_types import arrow_type
from ematix_flow.windows.aggregates.errors import WindowFailed
from ematix_flow.windows.aggregates.sketches import runs
from ematix_flow.windows.grouping import Columns, Folded, Request

if TYPE_CHECKING:
    import pyarrow as pa

    from ematix_flow.windows.aggregates.ordering import Integers


@dataclass(frozen=True)
class Accumulated:
    """The state of an instance. It is given every row, also those with NULLs, as in SQL."""

    udaf: AggregateUdf
    columns: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.columns

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        return tuple(arrow_type(name) for name in self.udaf.state)

    def start(self, rows: pa.Table) -> Request:
        return Folded([rows[name] for name in self.columns], self._updated)

    def merge(self, parts: Columns) -> Request:
        return Folded(parts, self._merged)

    def evaluate(self, *states: pa.Array) -> pa.Array:
        """The result of each state."""
        import pyarrow as pa

        returns = arrow_type(self.udaf.returns)
        results = [pa.nulls(0, returns)]
        for row in range(len(states[0])):
            with self._named("evaluate"):
                instance = self._instance([state.slice(row, 1) for state in states])
                results.append(_single(instance.evaluate(), returns))
        return pa.concat_arrays(results)

    def over(self, *columns: pa.Array) -> pa.Scalar:
        """The result of rows that are all there."""
        import numpy as np

        return self.evaluate(*self._updated(np.zeros(len(columns[0]), np.int64), 1, *columns))[0]

    def _updated(self, ids: Integers, groups: int, *columns: Any) -> Columns:
        import numpy as np
        import pyarrow as pa

        order = np.argsort(ids, kind="stable")
        with self._named("update_batch"):
            given = [
                column.take(pa.array(order)).cast(arrow_type(name))
                for column, name in zip(columns, self.udaf.args, strict=True)
            ]
        states = []
        for _, begin, end in runs(ids[order]):
            with self._named("update_batch"):
                instance = self.udaf()
                instance.update_batch(*(column.slice(begin, end - begin) for column in given))
                states.append(self._state(instance))
        return self._columns(states)

    def _merged(self, ids: Integers, groups: int, *parts: Any) -> Columns:
        import numpy as np
        import pyarrow as pa

        order = np.argsort(ids, kind="stable")
        given = [part.take(pa.array(order)) for part in parts]
        states = []
        for _, begin, end in runs(ids[order]):
            held = [column.slice(begin, end - begin) for column in given]
            if end - begin > 1:
                with self._named("merge_batch"):
                    held = self._state(self._instance(held))
            states.append(held)
        return self._columns(states)

    def _instance(self, states: Sequence[pa.Array]) -> Any:
        instance = self.udaf()
        instance.merge_batch(*states)
        return instance

    def _state(self, instance: Any) -> list[pa.Array]:
        given = instance.state()
        listed = list(given) if isinstance(given, list | tuple) else [given]
        if len(listed) != len(self.types):
            raise TypeError(f"state() gave {len(listed)} arrays, and {len(self.types)} are declared")
        return [_single(value, type) for value, type in zip(listed, self.types, strict=True)]

    def _columns(self, states: list[list[pa.Array]]) -> Columns:
        import pyarrow as pa

        empty = [pa.nulls(0, type) for type in self.types]
        return [pa.concat_arrays(column) for column in zip(empty, *states, strict=True)]

    @contextmanager
    def _named(self, method: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise WindowFailed(
                f"udaf {self.udaf.name} failed in {method}: {type(error).__name__}: {error}",
                next_step=f"correct the class {self.udaf.function.__name__}, then start again: nothing of the batch "
                "was written",
            ) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """A class arrives in a worker as itself, with the places from which its modules can be imported."""
        from pyspark import cloudpickle

        return _unpacked, (list(sys.path), cloudpickle.dumps(self.udaf), self.columns)  # type: ignore[no-untyped-call]


def _unpacked(path: list[str], udaf: bytes, columns: tuple[str, ...]) -> Accumulated:
    sys.path.extend(place for place in path if place not in sys.path)
    return Accumulated(pickle.loads(udaf), columns)  # noqa: S301 - written by `__reduce__` in the driver


def _single(value: Any, type: pa.DataType) -> pa.Array:
    """As an array of one: what may be one already, a scalar, or a plain value."""
    import pyarrow as pa

    if isinstance(value, pa.Scalar):
        value = value.as_py()
    if not isinstance(value, pa.Array):
        return pa.array([value], type)
    if len(value) != 1:
        raise TypeError(f"it gave an array of length {len(value)}, not of length 1")
    return value if value.type == type else value.cast(type)

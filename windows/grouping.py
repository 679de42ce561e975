"""Groups the rows of a table once for all aggregates: Arrow's own in one call of it, folds over group numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

Columns = Sequence[Any]
"""Arrow arrays of one length."""


@dataclass(frozen=True)
class Hashed:
    """Aggregates that Arrow has: values and function of each; `then` makes columns of what they give per group."""

    pairs: Sequence[tuple[Any, str]]
    """Without values: the number of rows."""
    then: Callable[..., Columns] | None = None


@dataclass(frozen=True)
class Folded:
    """Any other: `fold(ids, groups, *arrays)` gives columns with a value per group; `ids` is the group of each row."""

    columns: Columns
    fold: Callable[..., Columns]


Request = Hashed | Folded
COUNTED = (None, "count_all")
_ROW = "_flow_row"


@dataclass(frozen=True)
class Grouped:
    """One row per group, in the order of their first rows."""

    keys: list[pa.Array]
    answers: list[Columns]
    """To each request, in their order."""


def grouped(rows: pa.Table, by: Sequence[str], requests: Sequence[Request]) -> Grouped:
    """The same rows in the same order always give the same groups in the same order."""
    import numpy as np
    import pyarrow as pa

    # Without a key there is one group; Arrow has other functions for that, and fewer.
    keys = [rows[name] for name in by] or [pa.array(np.zeros(rows.num_rows, dtype=np.int8))]
    columns = {f"by{place}": key for place, key in enumerate(keys)}
    names = list(columns)
    wanted: list[tuple[Any, str]] = [("row", "min"), ([], "count_all")]
    columns["row"] = pa.array(np.arange(rows.num_rows))
    for request in requests:
        for values, function in request.pairs if isinstance(request, Hashed) else ():
            if values is not None:
                columns[f"v{len(wanted)}"] = values
                wanted.append((f"v{len(wanted)}", function))
    folds = any(isinstance(request, Folded) for request in requests)
    wanted += [("row", "list")] if folds else []
    groups = pa.table(columns).group_by(names, use_threads=False).aggregate(wanted)
    results = _in_order([in_one_piece(column) for column in groups.columns], len(names))
    _, counts, *found = results[len(names) :]
    ids = _ids(found.pop(), rows.num_rows) if folds else None
    answers: list[Columns] = []
    for request in requests:
        if isinstance(request, Hashed):
            given = [counts if values is None else found.pop(0) for values, _ in request.pairs]
            answers.append(request.then(*given) if request.then else given)
        else:
            answers.append(request.fold(ids, groups.num_rows, *map(in_one_piece, request.columns)))
    return Grouped(results[: len(by)], answers)


def possibly_among(rows: pa.Table, others: pa.Table, by: Sequence[str]) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Which rows may have the same values in `by` as one of the others; certainly those that have. This takes a small
    part of the time that grouping the rows would."""
    import numpy as np
    import pyarrow as pa

    # Arrow joins a NULL to nothing, while in groups it is a value like others.
    found = np.zeros(len(rows), dtype=np.bool_)
    for name in by:
        if rows[name].null_count:
            found |= rows[name].is_null().to_numpy()
    if found.all():
        return found
    numbered = rows.select(by).append_column(_ROW, pa.array(np.arange(len(rows))))
    matching = numbered.join(others.select(by), list(by), join_type="left semi", use_threads=False)
    found[matching[_ROW].to_numpy()] = True
    return found


def in_one_piece(column: Any) -> Any:
    """An array, also of a column that comes in chunks."""
    import pyarrow as pa

    if not isinstance(column, pa.ChunkedArray):
        return column
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def _in_order(columns: list[pa.Array], first: int) -> list[pa.Array]:
    """Arrow's order of groups follows their hashes; column number `first` has the first row of each."""
    import numpy as np
    import pyarrow as pa

    begins = columns[first].to_numpy()
    if (begins[1:] > begins[:-1]).all():
        return columns
    order = pa.array(np.argsort(begins))
    return [column.take(order) for column in columns]


def _ids(lists: pa.ListArray, size: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    import numpy as np

    ids = np.empty(size, dtype=np.int64)
    ids[lists.flatten().to_numpy()] = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    return ids

"""Which of two values comes first, for every type that has an order, as integers that numpy compares."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    Integers = np.ndarray[Any, np.dtype[np.int64]]


def ordinals(values: pa.Array) -> Integers:
    """Integers in the order of the values; any number where there is none. NaN comes after every number."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = values.type
    order: Integers
    if pa.types.is_floating(kind):
        bits = canonical(values).cast(pa.float64()).fill_null(0.0).to_numpy().view(np.int64)
        order = np.where(bits < 0, bits ^ np.iinfo(np.int64).max, bits)
    elif pa.types.is_boolean(kind):
        order = values.cast(pa.int8()).fill_null(0).to_numpy().astype(np.int64)
    elif is_whole(kind):
        order = whole(values).fill_null(0).to_numpy()
    else:
        order = pc.rank(values, sort_keys="ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    return order


def canonical(values: Any) -> Any:
    """Floats with one zero and one NaN, so that equal ones have equal bits; other values as they are."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_floating(values.type):
        return values
    positive = pc.add(values, pa.scalar(0.0, values.type))
    return pc.if_else(pc.is_nan(values), pa.scalar(float("nan"), values.type), positive)


def is_whole(kind: pa.DataType) -> bool:
    """Whether values are integers inside, such as times."""
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind))


def whole(values: Any) -> Any:
    """Values that are integers inside, as 64-bit integers."""
    import pyarrow as pa

    narrow = pa.types.is_temporal(values.type) and values.type.bit_width == 32
    return (values.cast(pa.int32()) if narrow else values).cast(pa.int64())

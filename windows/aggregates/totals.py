"""Sums and averages. Integers and decimals are summed exactly, as limbs of 32 bits in columns of 64: a total may thus
leave its range and come back, in any order of merging."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.windows.aggregates.errors import WindowFailed
from ematix_flow.windows.grouping import Columns, Hashed, Request, in_one_piece

if TYPE_CHECKING:
    import pyarrow as pa

_LIMB = 32
_LOW = (1 << _LIMB) - 1
_WIDEST = 38
_EXACT = Context(prec=100, rounding=ROUND_HALF_UP)


@dataclass(frozen=True)
class Total:
    """Of integers, in two limbs; of decimals, in four; of floats, in double precision."""

    column: str
    type: pa.DataType

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.column,)

    @property
    def types(self) -> tuple[pa.DataType, ...]:
        import pyarrow as pa

        if pa.types.is_floating(self.type):
            return (pa.float64(),)
        return (pa.int64(),) * (4 if pa.types.is_decimal(self.type) else 2)

    def start(self, rows: pa.Table) -> Request:
        import pyarrow as pa

        values = rows[self.column]
        if pa.types.is_floating(self.type):
            return Hashed([(values, "sum")])
        if pa.types.is_decimal(self.type):
            if self.type.precision + len(str(rows.num_rows)) <= _WIDEST:
                return Hashed([(values, "sum")], _limbs_of_decimals)
            return Hashed([(limb, "sum") for limb in _limbs_of_decimals(in_one_piece(values))], _carried)
        values = values.cast(pa.int64())
        if _stays_small(values):
            return Hashed([(values, "sum")], _limbs_of_integers)
        return Hashed([(limb, "sum") for limb in _limbs_of_integers(values)], _carried)

    def merge(self, parts: Columns) -> Request:
        return Hashed([(part, "sum") for part in parts], _carried)


def sum_type(given: pa.DataType) -> pa.DataType:
    import pyarrow as pa

    if pa.types.is_decimal(given):
        return pa.decimal128(min(_WIDEST, given.precision + 10), given.scale)
    return pa.float64() if pa.types.is_floating(given) else pa.int64()


def average_type(given: pa.DataType) -> pa.DataType:
    """As Spark's."""
    import pyarrow as pa

    if pa.types.is_decimal(given):
        return pa.decimal128(min(_WIDEST, given.precision + 4), min(_WIDEST, given.scale + 4))
    return pa.float64()


def total(type: pa.DataType, column: str, alias: str, *limbs: pa.Array) -> pa.Array:
    """Of a `Total`, as the type of the sum."""
    import pyarrow as pa

    if pa.types.is_floating(type):
        return limbs[0]
    if pa.types.is_decimal(type):
        return _decimals(limbs, type, f"the sum of {column}", alias)
    return _integers(limbs, column, alias)


def average(given: pa.DataType, type: pa.DataType, column: str, alias: str, *parts: pa.Array) -> pa.Array:
    """Of a `Total` of the given type and a `Count`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    *limbs, counts = parts
    if not pa.types.is_decimal(given):
        whole = limbs[0].cast(pa.float64())
        for limb in limbs[1:]:
            whole = pc.add(whole, pc.multiply(limb.cast(pa.float64(), safe=False), float(1 << _LIMB)))
        return pc.divide(whole, counts.cast(pa.float64()))
    step = Decimal(1).scaleb(-type.scale)

    def mean(whole: int, count: int) -> Decimal:
        return _EXACT.divide(Decimal(whole).scaleb(-given.scale, _EXACT), count).quantize(step, context=_EXACT)

    means = [
        None if whole is None else mean(whole, count)
        for whole, count in zip(_wholes(limbs), counts.to_pylist(), strict=True)
    ]
    try:
        return pa.array(means, type)
    except pa.ArrowInvalid as error:
        raise _too_large(f"the average of {column}", alias, f"{type.precision} digits") from error


def _stays_small(values: Any) -> bool:
    """Whether no sum of some of them can leave 64 bits."""
    import pyarrow.compute as pc

    ends = pc.min_max(values).as_py()
    return ends["min"] is None or max(-ends["min"], ends["max"]) * len(values) < 1 << 63


def _limbs_of_integers(values: Any) -> Columns:
    import pyarrow.compute as pc

    return [pc.bit_wise_and(values, _LOW), pc.shift_right(values, _LIMB)]


def _limbs_of_decimals(values: pa.Array) -> Columns:
    import numpy as np
    import pyarrow as pa

    buffer = values.buffers()[1] or b""
    words = np.frombuffer(buffer, dtype="<u4").reshape(-1, 4)[values.offset :][: len(values)]
    null = values.is_null().to_numpy(zero_copy_only=False)
    limbs = [*words[:, :3].T, words.view("<i4")[:, 3]]  # the sign is in the last
    return [pa.array(limb.astype(np.int64), mask=null) for limb in limbs]


def _carried(*limbs: pa.Array) -> Columns:
    """All but the last below 2^32 again."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(limbs[0].type):
        return limbs
    carried, carry = [], pa.scalar(0)
    for limb in limbs[:-1]:
        full = pc.add(limb, carry)
        carried.append(pc.bit_wise_and(full, _LOW))
        carry = pc.shift_right(full, _LIMB)
    return [*carried, pc.add(limbs[-1], carry)]


def _fit(highest: pa.Array) -> bool:
    import pyarrow.compute as pc

    ends = pc.min_max(highest).as_py()
    return ends["min"] is None or (ends["min"] >= -(1 << 31) and ends["max"] < 1 << 31)


def _integers(limbs: Sequence[pa.Array], column: str, alias: str) -> pa.Array:
    import pyarrow.compute as pc

    low, high = limbs
    if not _fit(high):
        raise _too_large(f"the sum of {column}", alias, "64 bits")
    return pc.add(pc.multiply(high, 1 << _LIMB), low)


def _decimals(limbs: Sequence[pa.Array], type: pa.DataType, what: str, alias: str) -> pa.Array:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    if _fit(limbs[-1]):
        words = np.stack([limb.fill_null(0).to_numpy().astype(np.uint32) for limb in limbs], axis=1)
        mask = limbs[0].is_valid().buffers()[1]
        sums = pa.Array.from_buffers(type, len(words), [mask, pa.py_buffer(np.ascontiguousarray(words))])
        ends = pc.min_max(sums)
        most = pa.scalar(Decimal(10**type.precision - 1).scaleb(-type.scale, _EXACT), type)
        least = pa.scalar(Decimal(1 - 10**type.precision).scaleb(-type.scale, _EXACT), type)
        within = (pc.less_equal(ends["max"], most), pc.greater_equal(ends["min"], least))
        if not any(fits.as_py() is False for fits in within):
            return sums
    raise _too_large(what, alias, f"{type.precision} digits")


def _wholes(limbs: Sequence[pa.Array]) -> list[int | None]:
    """The totals as they are without a decimal point."""
    rows = zip(*(limb.to_pylist() for limb in limbs), strict=True)
    return [None if row[0] is None else sum(limb << (_LIMB * place) for place, limb in enumerate(row)) for row in rows]


def _too_large(what: str, alias: str, room: str) -> WindowFailed:
    return WindowFailed(
        f"{what} ({alias}) does not fit into {room}",
        next_step="make the windows or groups smaller, or cast the column to double in the transform",
    )

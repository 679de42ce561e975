"""Arrow's types for Spark's, by the names that `ematix_flow.udf.spark_type` gives them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def arrow_type(name: str) -> pa.DataType:
    """As Spark exchanges it: `array<bigint>` is a list of int64, `timestamp` is in UTC."""
    import pyarrow as pa

    plain = {
        "boolean": pa.bool_(), "tinyint": pa.int8(), "smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64(),
        "float": pa.float32(), "double": pa.float64(), "string": pa.string(), "binary": pa.binary(),
        "date": pa.date32(), "timestamp": pa.timestamp("us", "UTC"), "timestamp_ntz": pa.timestamp("us"),
    }  # fmt: skip
    if name in plain:
        return plain[name]
    if decimal := re.fullmatch(r"decimal\((\d+),\s*(\d+)\)", name):
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    kind, _, inner = name.removesuffix(">").partition("<")
    parts = _split(inner)
    if kind == "array":
        return pa.list_(arrow_type(inner))
    if kind == "map":
        return pa.map_(*(arrow_type(part) for part in parts))
    if kind == "struct":
        return pa.struct([(field, arrow_type(type)) for field, _, type in (part.partition(":") for part in parts)])
    raise ValueError(name)  # spark_type gives no other names


def _split(text: str) -> list[str]:
    """Cut at the commas that stand in no bracket."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts

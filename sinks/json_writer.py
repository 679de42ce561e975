"""Rows of an Arrow table as JSON objects, column by column, as Spark would write them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

_TO_ESCAPE = r'["\\\x00-\x1f]'


def are_writable(kinds: Sequence[pa.DataType]) -> bool:
    """Columns of these types, of which there has to be one."""
    return bool(kinds) and all(map(_is_writable, kinds))


def json_objects(rows: pa.Table) -> pa.Array:
    """Of columns that are writable. NULLs are left out; a number may have another form than Spark gives it, such as
    10000000.0 for 1.0E7."""
    import pyarrow.compute as pc

    # Texts that are the same for all rows, and columns of texts, in turn: to join them once is most of the work.
    parts: list[Any] = [""]
    for name in rows.column_names:
        column = rows[name]
        begin, text, end = _text(column)
        member = f",{json.dumps(name, ensure_ascii=False)}:{begin}", text, end
        if column.null_count:
            member = "", pc.binary_join_element_wise(*member, "").fill_null(""), ""
        parts[-1] += member[0]
        parts += member[1:]
    if not rows[0].null_count:
        parts[0], parts[-1] = "{" + parts[0][1:], parts[-1] + "}"
        return pc.binary_join_element_wise(*parts, "").cast("binary").combine_chunks()
    # Whichever member is the first one of its row has no comma.
    inside = pc.ascii_ltrim(pc.binary_join_element_wise(*parts, ""), ",")
    return pc.binary_join_element_wise("{", inside, "}", "").cast("binary").combine_chunks()


def _is_writable(kind: pa.DataType) -> bool:
    import pyarrow as pa

    known = (
        pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, pa.types.is_string, pa.types.is_decimal,
        pa.types.is_timestamp, pa.types.is_date,
    )  # fmt: skip
    return any(is_kind(kind) for is_kind in known)


def _text(column: pa.ChunkedArray) -> tuple[str, Any, str]:
    """Of each value, with what comes before and after it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string(column.type):
        return '"', _escaped(column), '"'
    if pa.types.is_timestamp(column.type):
        # In UTC; with its zone it would take forty times as long.
        text = column.cast(pa.timestamp("us")).cast(pa.string())
        return '"', pc.binary_replace_slice(text, 10, 11, "T"), 'Z"' if column.type.tz else '"'
    text = column.cast(pa.string())
    if pa.types.is_date(column.type):
        return '"', text, '"'
    if pa.types.is_floating(column.type):
        is_whole = pc.invert(pc.or_(pc.match_substring(text, "."), pc.match_substring(text, "e")))
        if pc.any(is_whole).as_py():
            text = pc.if_else(is_whole, pc.binary_join_element_wise(text, ".0", ""), text)
    return "", text, ""


def _escaped(column: pa.ChunkedArray) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    # All texts at once take a third of the time of one after the other.
    if not any(re.search(_TO_ESCAPE.encode(), _bytes(chunk)) for chunk in column.chunks):
        return column
    to_escape = pc.match_substring_regex(column, _TO_ESCAPE)
    written = [json.dumps(text, ensure_ascii=False)[1:-1] for text in column.filter(to_escape).to_pylist()]
    return pc.replace_with_mask(column.combine_chunks(), to_escape.combine_chunks(), pa.array(written, column.type))


def _bytes(texts: pa.Array) -> memoryview:
    """All of them in a row, as they lie in memory; those of NULLs may be among them."""
    import numpy as np

    _, places, content = texts.buffers()
    if content is None or not len(texts):
        return memoryview(b"")
    ends = np.frombuffer(places, np.int32)[texts.offset : texts.offset + len(texts) + 1]
    return memoryview(content)[ends[0] : ends[-1]]

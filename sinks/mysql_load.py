"""Rows of a partition into a MySQL table: by LOAD DATA LOCAL, or by INSERTs of many rows where that is forbidden."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ematix_flow.sinks.mysql_address import Address, connected
from ematix_flow.sinks.tables import quoted
from ematix_flow.state.kernel import GONE

if TYPE_CHECKING:
    import pyarrow as pa

WRONG = "_flow_wrong"
"""Hidden column of staged rows: why MySQL cannot hold a value of the row, in which NULL stands for it."""

# The server or its administrator does not allow LOAD DATA LOCAL.
_FORBIDDEN = (1148, 3948, 4166)
_PACKET_BYTES = 256 << 10
_STATEMENT_BYTES = 1 << 20
# Names are quoted as everywhere here; a backslash in a text is one that escapes.
_SETTINGS = ("sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES'", "time_zone = '+00:00'", "lock_wait_timeout = 30")


def ingest(address: Address, table: str, rows: pa.RecordBatchReader) -> str:
    import pymysql
    from pymysql.constants import CLIENT

    columns = (*rows.schema.names, WRONG)
    try:
        # PyMySQL itself is not told of LOCAL_FILES: it would send any file of this machine that a server asks for.
        with closing(connected(address, settings=_SETTINGS, client_flag=CLIENT.LOCAL_FILES)) as db:
            if _loads(db, table):
                _load(db, table, columns, (_lines(batch) for batch in _checked(rows)))
            else:
                for batch in _checked(rows):
                    _insert(db, table, columns, batch)
    except pymysql.Error as error:
        return f"{error.args[-1]} ({error.args[0]})" if error.args else type(error).__name__
    return ""


def _loads(db: Any, table: str) -> bool:
    """Whether LOAD DATA LOCAL is allowed, tried with no row: rows can be read only once."""
    import pymysql

    try:
        _load(db, table, (WRONG,), ())
    except pymysql.Error as error:
        if error.args[0] in _FORBIDDEN:
            return False
        raise
    return True


def _load(db: Any, table: str, columns: Sequence[str], pieces: Iterable[memoryview]) -> None:
    from pymysql.constants import COMMAND

    named = ", ".join(map(quoted, columns))
    sql = (
        f"LOAD DATA LOCAL INFILE 'rows' INTO TABLE {table} CHARACTER SET binary "
        rf"FIELDS TERMINATED BY '\t' ESCAPED BY '\\' LINES TERMINATED BY '\n' ({named})"
    )
    db._execute_command(COMMAND.COM_QUERY, sql)  # noqa: SLF001 - the driver can only send files
    packet = db._read_packet()  # noqa: SLF001
    if not packet.is_load_local_packet():
        raise RuntimeError("the server answers LOAD DATA LOCAL in a way that it should not")
    for piece in pieces:
        for start in range(0, len(piece), _PACKET_BYTES):
            db.write_packet(bytes(piece[start : start + _PACKET_BYTES]))
    db.write_packet(b"")
    db._read_packet()  # noqa: SLF001 - raises what the server says of the rows


def _insert(db: Any, table: str, columns: Sequence[str], rows: pa.RecordBatch) -> None:
    head = f"INSERT INTO {table} ({', '.join(map(quoted, columns))}) VALUES ".encode()
    tuples = _tuples(rows)
    size = max(1, len(memoryview(_bytes_of(tuples))) // max(1, rows.num_rows))
    at_once = max(1, _STATEMENT_BYTES // size)
    with db.cursor() as cursor:
        for start in range(0, rows.num_rows, at_once):
            some = _bytes_of(tuples.slice(start, at_once))
            cursor.execute(head + bytes(some)[:-1])


def _checked(rows: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """With `WRONG`, and without what would end the copying of all rows: MySQL knows neither NaN nor infinity, and takes
    no text that is not UTF-8."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in rows:
        columns, wrong = [], pa.nulls(batch.num_rows, pa.string())
        for name in batch.schema.names:
            column, fine = _usable(batch[name])
            if fine is not None:
                words = f"column {name}: {'no UTF-8 text' if pa.types.is_binary(column.type) else 'NaN or infinity'}"
                wrong = pc.if_else(fine, wrong, pa.scalar(f"{words}, which MySQL cannot hold"))
            columns.append(column)
        if GONE in batch.schema.names and wrong.null_count < len(wrong):
            # Of a row that is taken back nothing but its key counts.
            wrong = pc.if_else(pc.fill_null(batch[GONE], False), pa.scalar(None, pa.string()), wrong)
        yield pa.record_batch([*columns, wrong], names=[*batch.schema.names, WRONG])


def _usable(column: pa.Array) -> tuple[pa.Array, pa.Array | None]:
    """The column, with NULL for what cannot be held, and which values can, if not all can."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_floating(column.type):
        fine = pc.fill_null(pc.is_finite(column), True)
    elif pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid:
            column = column.cast(pa.large_binary()).cast(pa.binary())
            fine = pa.array([value is None or _is_text(value) for value in column.to_pylist()])
        else:
            return column, None
    else:
        return column, None
    if pc.all(fine).as_py() is not False:
        return column, None
    return pc.if_else(fine, column, pa.scalar(None, column.type)), fine


def _is_text(value: bytes) -> bool:
    try:
        value.decode()
    except UnicodeDecodeError:
        return False
    return True


def _lines(rows: pa.RecordBatch) -> memoryview:
    """As LOAD DATA reads them: tabs between fields, a backslash before what would end one, `\\N` for NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    escapes = ((b"\\", b"\\\\"), (b"\t", b"\\t"), (b"\n", b"\\n"), (b"\0", b"\\0"))
    fields = [_escaped(column, escapes) if _is_bytes(column) else _written(column) for column in rows.columns]
    joined = pc.binary_join_element_wise(
        *fields, pa.scalar(b"\t", pa.large_binary()), null_handling="replace", null_replacement="\\N"
    )
    end = pa.scalar(b"", pa.large_binary())
    return _bytes_of(pc.binary_join_element_wise(joined, pa.scalar(b"\n", pa.large_binary()), end))


def _tuples(rows: pa.RecordBatch) -> pa.Array:
    """As they stand in an INSERT, each with a comma after it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    def bare(value: bytes) -> pa.Scalar:
        return pa.scalar(value, pa.large_binary())

    def literal(column: pa.Array) -> pa.Array:
        written = _written(column)
        if pa.types.is_integer(column.type) or pa.types.is_boolean(column.type) or pa.types.is_decimal(column.type):
            return written
        if _is_bytes(column):
            written = _escaped(column, ((b"\\", b"\\\\"), (b"'", b"\\'"), (b"\0", b"\\0")))
        return pc.binary_join_element_wise(bare(b"_binary'"), written, bare(b"'"), bare(b""))

    joined = pc.binary_join_element_wise(
        *(literal(column) for column in rows.columns),
        bare(b","),
        null_handling="replace",
        null_replacement="NULL",
    )
    return pc.binary_join_element_wise(bare(b"("), joined, bare(b"),"), bare(b""))


def _is_bytes(column: pa.Array) -> bool:
    import pyarrow as pa

    kind = column.type
    return any(
        is_kind(kind)
        for is_kind in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
    )


def _escaped(column: pa.Array, escapes: Iterable[tuple[bytes, bytes]]) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    written = column.cast(pa.large_binary())
    for plain, escaped in escapes:
        if pc.any(pc.match_substring(written, plain)).as_py():
            written = pc.replace_substring(written, plain, escaped)
    return written


def _written(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_null(column.type):
        return column.cast(pa.large_binary())
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.int8())
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us"))
    if _is_bytes(column):
        return column.cast(pa.large_binary())
    return column.cast(pa.large_string()).cast(pa.large_binary())


def _bytes_of(texts: pa.Array) -> memoryview:
    """All of them, one after the other."""
    import struct

    if not len(texts):
        return memoryview(b"")
    _, offsets, data = texts.buffers()
    first, last = (struct.unpack_from("<q", offsets, (texts.offset + index) * 8)[0] for index in (0, len(texts)))
    return memoryview(data)[first:last]

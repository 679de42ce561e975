"""MySQL and MariaDB as a source: rows come as text, piece by piece, and Spark reads the text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from ematix_flow.connections import MySQLConnection
from ematix_flow.sinks.mysql import is_passing
from ematix_flow.sinks.mysql_address import connected, understood
from ematix_flow.streams.sources.database.base import Database, SourceColumn, SourceRefused

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType

_ROWS_AT_ONCE = 10_000
# Quotes stay what they are to whoever wrote the query.
_SETTINGS = ("time_zone = '+00:00'",)
_BINARY = 63  # the number of the character set that stands for bytes
_UNSIGNED = 32
_WHOLE = {1: "tinyint", 2: "smallint", 3: "int", 9: "int", 8: "bigint", 13: "int"}
_WIDER = {"tinyint": "smallint", "smallint": "int", "int": "bigint", "bigint": "decimal(20,0)"}
_OTHER = {4: "float", 5: "double", 10: "date", 14: "date", 7: "timestamp", 12: "timestamp_ntz", 16: "decimal(20,0)"}
_DECIMALS, _BITS, _FLOAT = (0, 246), 16, 4


class MySQL(Database):
    product, text = "MySQL", "CHAR"

    def __init__(self, connection: MySQLConnection, whose: str) -> None:
        self._address = understood(connection, whose)
        super().__init__(str(self._address), whose)

    def quoted(self, name: str) -> str:
        return "`" + name.replace("`", "``") + "`"

    def named(self, table: str) -> str:
        parts = table.split(".")
        # The session of a target is in another database.
        if len(parts) == 1 and self._address.database:
            parts.insert(0, self._address.database)
        return ".".join(map(self.quoted, parts))

    def connected(self, **options: Any) -> Any:
        return connected(self._address, settings=_SETTINGS, **options)

    def columns(self, relation: str) -> list[SourceColumn]:
        from pyspark.sql.types import BinaryType, StringType

        with self.in_words(), closing(self.connected()) as db, db.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {relation} LIMIT 0")
            fields = list(cursor._result.fields)  # noqa: SLF001 - `description` leaves out the sign and the charset
        columns = []
        for field in fields:
            spark, name = _spark_type(field), field.name
            # A FLOAT is written with six digits, a BIT as bytes.
            exact = {_FLOAT: f"({self.quoted(name)} + 0e0)", _BITS: f"({self.quoted(name)} + 0)"}
            wire = BinaryType() if isinstance(spark, BinaryType) else StringType()
            columns.append(SourceColumn(name, spark, exact.get(field.type_code, self.quoted(name)), wire))
        return columns

    def primary_key(self, table: str) -> tuple[str, ...]:
        schema, _, name = table.rpartition(".")
        within = self.literal(schema) if schema else "DATABASE()"
        with self.in_words():
            found = self.rows(
                "SELECT column_name FROM information_schema.key_column_usage WHERE constraint_name = 'PRIMARY' "
                f"AND table_schema = {within} AND table_name = {self.literal(name)} ORDER BY ordinal_position"
            )
        return tuple(name for (name,) in found)

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        with closing(self.connected()) as db, db.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall())

    def batches(self, sql: str, schema: pa.Schema, snapshot: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pymysql.cursors import SSCursor

        # Without converters every value is the text that came, and what is binary its bytes.
        with closing(self.connected(conv={}, cursorclass=SSCursor)) as db, db.cursor() as cursor:
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            cursor.execute(sql)
            while some := cursor.fetchmany(_ROWS_AT_ONCE):
                columns = [
                    pa.array(column, pa.binary() if pa.types.is_binary(field.type) else pa.string()).cast(field.type)
                    for column, field in zip(zip(*some, strict=True), schema, strict=True)
                ]
                yield pa.record_batch(columns, schema=schema)

    def literal(self, value: Any) -> str:
        from pymysql.converters import escape_item

        if isinstance(value, str):
            # Whatever quotes and backslashes mean to this server.
            return f"CONVERT(0x{value.encode().hex()} USING utf8mb4)" if value else "''"
        return str(value) if isinstance(value, int | Decimal) else str(escape_item(value, "utf8mb4"))

    def joined(self, parts: Any) -> str:
        return f"CONCAT_WS(CHAR(31), {', '.join(parts)})"

    @property
    def parallel(self) -> bool:
        return True

    def failure(self, error: Exception) -> SourceRefused | None:
        import pymysql

        if not isinstance(error, pymysql.Error):
            return None
        words = f"{error.args[-1]} ({error.args[0]})" if error.args else type(error).__name__
        if is_passing(error):
            return self.unavailable(words)
        return self.refused(words, "check user and password, the query, and what the user may read")


def _spark_type(field: Any) -> DataType:
    from pyspark.sql.types import BinaryType, DecimalType, StringType

    from ematix_flow.sinks.widening import spark_named

    code, unsigned = field.type_code, bool(field.flags & _UNSIGNED)
    if code in _DECIMALS:
        # The length counts the sign and the point.
        digits = field.length - (not unsigned) - bool(field.scale)
        return DecimalType(min(38, max(digits, field.scale, 1)), min(field.scale, 38))
    if code in {1, _BITS} and field.length == 1:
        return spark_named("boolean")
    if code in _WHOLE:
        return spark_named(_WIDER[_WHOLE[code]] if unsigned and code != 13 else _WHOLE[code])
    if code in _OTHER:
        return spark_named(_OTHER[code])
    is_bytes = code in {249, 250, 251, 252, 253, 254, 15} and field.charsetnr == _BINARY
    return BinaryType() if is_bytes else StringType()

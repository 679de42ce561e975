"""Where each kind of envelope keeps what a change is: its operation, the row before and after, its place in the log.

Everything here is text: the columns in which an envelope is read, as DDL, and expressions of Spark SQL over them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ematix_flow.specs import CDC

ROW_TYPE = "map<string, string>"
"""Rows are read as texts by column, so that a column that is absent is told from one that is NULL."""
CREATE, UPDATE, DELETE, TRUNCATE, SKIP = "c", "u", "d", "t", "-"
OPERATIONS = {"create": CREATE, "read": CREATE, "update": UPDATE, "delete": DELETE, "truncate": TRUNCATE}

_DEBEZIUM = {"c": CREATE, "r": CREATE, "u": UPDATE, "d": DELETE, "t": TRUNCATE, "m": SKIP}
_MAXWELL = {
    "insert": CREATE, "bootstrap-insert": CREATE, "update": UPDATE, "delete": DELETE, "bootstrap-start": SKIP,
    "bootstrap-complete": SKIP, "table-create": SKIP, "table-alter": SKIP, "table-drop": SKIP, "database-create": SKIP,
    "database-alter": SKIP, "database-drop": SKIP,
}  # fmt: skip
_TRANSACTION = {
    "id": "transaction.id", "order": "transaction.total_order", "news_of": "id", "count": "event_count",
    "counts": "data_collections",
}  # fmt: skip
# Of a number with at most 20 digits, so that texts compare as the numbers do.
_DIGITS = 20
_DECIMALS = 9
_WRAPPED = "payload"


@dataclass(frozen=True)
class InTransaction:
    """What an envelope says of the transaction of the source that its change is of, and the news of a transaction:
    that it began, or that it is over, with so many changes."""

    id: str
    order: str
    """The number of the change in its transaction."""
    news_of: str
    status: str
    """`BEGIN` or `END`."""
    count: str
    """Of the changes, at the end."""
    counts: str
    """The same by table, as JSON."""


@dataclass(frozen=True)
class Envelope:
    """Expressions over the columns of `ddl`; NULL where an envelope says nothing."""

    ddl: str
    op: str
    """The operation, as the envelope calls it."""
    ops: Mapping[str, str]
    """What these operations are here."""
    before: str
    after: str
    key: str
    """The key as a text: a JSON object, or the only value of it."""
    at: str
    """The place of the change in the log of its source, as a text: of two changes, the later one has the greater."""
    moment: str
    """When the change was made, in milliseconds since 1970."""
    tables: tuple[str, ...]
    """The names of the changed table, from the longest one to the shortest."""
    table: str
    """The usual one of them: `schema.table`, or `database.table` where there are no schemas."""
    ignorable: str = "false"
    """Whether an envelope without an operation is none, but news of a transaction."""
    schema: str = "CAST(NULL AS STRING)"
    """The JSON text that describes the types of the row, where envelopes bring one."""
    paths: tuple[tuple[str, ...], ...] = ()
    """Where rows stand in the JSON of an envelope."""
    transaction: InTransaction | None = None
    """If changes of a transaction are to be applied together."""


def envelope_of(cdc: CDC) -> Envelope:
    return {"debezium": _debezium, "maxwell": _maxwell, "custom": _custom}[cdc.envelope](cdc)


def _same_in_all(id: str) -> str:
    """PostgreSQL's connector puts the place in the log behind the number, which differs from change to change."""
    return f"regexp_replace({id}, '^([0-9]+):[0-9]+$', '$1')"


def _debezium(cdc: CDC) -> Envelope:
    """With and without the wrapper of schema and payload."""
    rows = {"before": cdc.before_field or "before", "after": cdc.after_field or "after"}
    texts = {name: f"source.{name}" for name in ("lsn", "file", "pos", "gtid", "ts_ms", "db", "schema", "table")}
    texts |= {"op": cdc.op_field or "op", "moment": "ts_ms", "status": "status"}
    given = {"key": cdc.key_field, "ts": cdc.ts_field, "table": cdc.table_field}
    texts |= {role: path for role, path in given.items() if path}
    texts |= _TRANSACTION if cdc.transactional else {}
    wanted = [(role, path, ROW_TYPE) for role, path in rows.items()]
    wanted += [(role, path, "string") for role, path in texts.items()]
    plain = _Paths(wanted)
    wrapped = _Paths([one for one in wanted if not one[1].startswith(f"{_WRAPPED}.")], _WRAPPED)

    def of(role: str) -> str:
        found = [paths.expressions[role] for paths in (plain, wrapped) if role in paths.expressions]
        return f"coalesce({', '.join(found)})" if found else "CAST(NULL AS STRING)"

    moment = f"coalesce({of('ts')}, {of('ts_ms')}, {of('moment')})"
    file, transaction = (f"nullif(regexp_extract({of(name)}, '([0-9]+)$', 1), '')" for name in ("file", "gtid"))
    logged = [_place("1", of("lsn")), _place("1", file, of("pos")), _place("1", transaction)]
    timed = _moment(moment)
    paths = tuple(tuple(path.split(".")) for path in rows.values())
    tables = _names(of("db"), of("schema"), of("table"))
    told = InTransaction(**{role: of(role) for role in (*_TRANSACTION, "status")})
    told = replace(told, id=_same_in_all(told.id), news_of=_same_in_all(told.news_of))
    return Envelope(
        ddl=_ddl({"schema": "string", **_union(plain.tree, wrapped.tree)}),
        op=of("op"),
        ops=_mapped(cdc, _DEBEZIUM),
        before=of("before"),
        after=of("after"),
        key=of("key"),
        at=_at([timed] if cdc.ts_field else [*logged, timed]),
        moment=_millis(moment),
        tables=tables,
        table=f"coalesce({', '.join(tables[1:])})",
        ignorable=f"{of('status')} IN ('BEGIN', 'END')",
        schema="`schema`",
        paths=(*paths, *((_WRAPPED, *path) for path in paths)),
        transaction=told if cdc.transactional else None,
    )


def _maxwell(cdc: CDC) -> Envelope:
    row = cdc.after_field or "data"
    of = (
        paths := _Paths(
            [
                ("op", cdc.op_field or "type", "string"),
                ("before", cdc.before_field or "old", ROW_TYPE),
                ("after", row, ROW_TYPE),
                ("ts", cdc.ts_field or "ts", "string"),
                ("table", cdc.table_field or "table", "string"),
                *((name, name, "string") for name in ("position", "database")),
            ]
        )
    ).expressions
    file, place = (f"nullif(regexp_extract({of['position']}, '([0-9]+):([0-9]+)$', {i}), '')" for i in (1, 2))
    # Seconds, unless somebody names another field.
    moment = of["ts"] if cdc.ts_field else f"CAST(try_cast({of['ts']} AS BIGINT) * 1000 AS STRING)"
    places = [_place("1", file, place), _moment(moment)]
    tables = _names(of["database"], of["table"])
    return Envelope(
        ddl=_ddl(paths.tree),
        op=of["op"],
        ops=_mapped(cdc, _MAXWELL),
        before=of["before"],
        after=of["after"],
        key="CAST(NULL AS STRING)",
        at=_at(places[1:] if cdc.ts_field else places),
        moment=_millis(moment),
        tables=tables,
        table=f"coalesce({', '.join(tables)})",
        paths=(tuple(row.split(".")),),
    )


def _custom(cdc: CDC) -> Envelope:
    rows = {role: path for role, path in {"before": cdc.before_field, "after": cdc.after_field}.items() if path}
    texts = {"op": cdc.op_field, "key": cdc.key_field, "ts": cdc.ts_field, "table": cdc.table_field}
    wanted = [(role, path, ROW_TYPE) for role, path in rows.items()]
    wanted += [(role, path, "string") for role, path in texts.items() if path]
    paths = _Paths(wanted)
    of = dict.fromkeys(("key", "ts", "table"), "CAST(NULL AS STRING)") | paths.expressions
    return Envelope(
        ddl=_ddl(paths.tree),
        op=of["op"],
        ops=_mapped(cdc, {}),
        before=of.get("before", f"CAST(NULL AS {ROW_TYPE})"),
        after=of["after"],
        key=of["key"],
        at=_at([_moment(of["ts"])]),
        moment=_millis(of["ts"]),
        tables=(of["table"],),
        table=of["table"],
        paths=tuple(tuple(path.split(".")) for path in rows.values()),
    )


def _names(*parts: str) -> tuple[str, ...]:
    """A name with all parts, one without each of those before the last, and the last alone."""
    known = [f"nullif({part}, '')" for part in parts]
    *within, table = known
    listed = [known, *([place, table] for place in reversed(within)), [table]]
    joined = (", '.', ".join(names) for names in listed)
    return tuple(dict.fromkeys(f"concat({names})" for names in joined))


def _mapped(cdc: CDC, known: Mapping[str, str]) -> dict[str, str]:
    return {**known, **{op: OPERATIONS[name] for op, name in (cdc.op_map or {}).items()}}


def _place(rank: str, major: str, minor: str = "'0'") -> str:
    """Numbers of one length, so that texts compare as they do. Times count less than places in a log: a snapshot that
    knows no place is older than what was logged."""
    is_number = f"RLIKE '^[0-9]{{1,{_DIGITS}}}$'"
    numbers = (f"CASE WHEN {text} {is_number} THEN lpad({text}, {_DIGITS}, '0') END" for text in (major, minor))
    return f"concat('{rank}', {', '.join(numbers)})"


def _at(places: Sequence[str]) -> str:
    """The first that is known; without any, changes are in the order of their arrival."""
    return f"coalesce({', '.join(places)}, '{'0' * (2 * _DIGITS + 1)}')"


def _moment(text: str) -> str:
    """The place of a time, which is a number, maybe with a fraction, or written out."""
    number = f"try_cast({text} AS DECIMAL(38, {_DECIMALS}))"
    whole = f"coalesce(floor({number}), unix_micros(try_cast({text} AS TIMESTAMP)))"
    part = f"coalesce({number} % 1 * 1{'0' * _DECIMALS}, 0)"
    return _place("0", f"CAST({whole} AS STRING)", f"CAST(CAST({part} AS BIGINT) AS STRING)")


def _millis(text: str) -> str:
    return f"coalesce(try_cast({text} AS BIGINT), unix_millis(try_cast({text} AS TIMESTAMP)))"


class _Paths:
    """Dotted paths as the columns of one JSON object. A path below one that is read whole is looked up in it."""

    def __init__(self, wanted: Sequence[tuple[str, str, str]], below: str = "") -> None:
        """`wanted` are roles, their paths and the types in which they are read."""
        self.tree: dict[str, object] = {}
        self.expressions: dict[str, str] = {}
        split = [(role, [*([below] if below else []), *path.split(".")], kind) for role, path, kind in wanted]
        for role, parts, kind in sorted(split, key=lambda one: len(one[1])):
            self.expressions[role] = self._placed(parts, kind)

    def _placed(self, parts: list[str], kind: str) -> str:
        node = self.tree
        for depth, part in enumerate(parts[:-1], start=1):
            inner = node.setdefault(part, {})
            if not isinstance(inner, dict):
                return _within(_dotted(parts[:depth]), str(inner), parts[depth:])
            node = inner
        node.setdefault(parts[-1], kind)
        return _dotted(parts)


def _dotted(parts: Sequence[str]) -> str:
    return ".".join(f"`{part}`" for part in parts)


def _within(whole: str, kind: str, parts: Sequence[str]) -> str:
    if kind == ROW_TYPE:
        whole, parts = f"{whole}['{_escaped(parts[0])}']", parts[1:]
    return f"get_json_object({whole}, '$.{_escaped('.'.join(parts))}')" if parts else whole


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "\\'")


def _ddl(tree: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}` {_type(kind)}" for name, kind in tree.items())


def _union(one: Mapping[str, object], other: Mapping[str, object]) -> dict[str, object]:
    result = dict(one)
    for name, kind in other.items():
        held = result.get(name)
        result[name] = _union(held, kind) if isinstance(held, dict) and isinstance(kind, dict) else held or kind
    return result


def _type(kind: object) -> str:
    if isinstance(kind, dict):
        return f"struct<{', '.join(f'`{name}`: {_type(inner)}' for name, inner in kind.items())}>"
    return str(kind)

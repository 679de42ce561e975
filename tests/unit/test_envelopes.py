"""Where envelopes keep what a change is, and what their schemas say; no Spark."""

import json

import pytest

from ematix_flow import CDC
from ematix_flow.cdc.envelopes import envelope_of
from ematix_flow.cdc.logical import Field, fields_of


def test_debezium_is_read_with_and_without_its_wrapper() -> None:
    envelope = envelope_of(CDC())
    assert envelope.op == "coalesce(`op`, `payload`.`op`)"
    assert envelope.after == "coalesce(`after`, `payload`.`after`)"
    assert "`payload` struct<`before`: map<string, string>" in envelope.ddl
    assert envelope.paths == (("before",), ("after",), ("payload", "before"), ("payload", "after"))
    assert {op: envelope.ops[op] for op in "crudtm"} == {"c": "c", "r": "c", "u": "u", "d": "d", "t": "t", "m": "-"}


def test_fields_of_ones_own_may_lie_within_each_other() -> None:
    cdc = CDC(
        envelope="custom", op_field="meta.op", after_field="data", key_field="data.id", ts_field="meta.at",
        op_map={"I": "create", "D": "d"},
    )  # fmt: skip
    envelope = envelope_of(cdc)
    assert envelope.ddl == "`data` map<string, string>, `meta` struct<`op`: string, `at`: string>"
    assert (envelope.key, envelope.op) == ("`data`['id']", "`meta`.`op`")
    assert envelope.ops == {"I": "c", "D": "d"}


def test_a_given_field_of_a_known_envelope_takes_the_place_of_its_own() -> None:
    assert envelope_of(CDC(envelope="maxwell", after_field="row")).after == "`row`"
    assert envelope_of(CDC(op_field="payload.op")).op == "coalesce(`payload`.`op`)"


def test_a_table_has_several_names_from_the_longest_to_the_shortest() -> None:
    *_, of_database, alone = (name.replace("nullif", "") for name in envelope_of(CDC(envelope="maxwell")).tables)
    assert (of_database, alone) == ("concat((`database`, ''), '.', (`table`, ''))", "concat((`table`, ''))")
    assert len(envelope_of(CDC()).tables) == 4


@pytest.mark.parametrize(
    ("declared", "kind"),
    [
        ({"type": "int16"}, "smallint"),
        ({"type": "bytes"}, "binary"),
        ({"type": "array", "items": {"type": "int64"}}, "array<bigint>"),
        ({"type": "struct", "fields": [{"field": "x", "type": "double"}]}, "struct<`x`: double>"),
        ({"type": "int32", "name": "io.debezium.time.Date"}, "date"),
        ({"type": "string", "name": "io.debezium.time.ZonedTimestamp"}, "timestamp"),
        ({"type": "int64", "name": "io.debezium.time.MicroTimestamp"}, "timestamp_ntz"),
        ({"type": "string", "name": "io.debezium.data.Json"}, "string"),
        ({"type": "struct", "name": "io.debezium.data.geometry.Point"}, "binary"),
        (
            {
                "type": "bytes",
                "name": "org.apache.kafka.connect.data.Decimal",
                "parameters": {"scale": "2", "connect.decimal.precision": "10"},
            },
            "decimal(10,2)",
        ),
    ],
)
def test_types_of_a_schema(declared: dict[str, object], kind: str) -> None:
    row = {"field": "after", "type": "struct", "fields": [{"field": "c", **declared}]}
    found = fields_of(json.dumps({"type": "struct", "fields": [row]}))
    assert found["c"].kind == kind


@pytest.mark.parametrize("text", ["", "null", "[]", "{}", '{"fields": 1}'])
def test_what_is_no_schema_says_nothing(text: str) -> None:
    assert fields_of(text) == {}


def test_only_coded_values_are_rewritten() -> None:
    assert Field("string", "io.debezium.data.Uuid").is_plain
    assert not Field("date", "io.debezium.time.Date").is_plain


def test_some_texts_have_a_type_of_their_own_where_a_database_has_it() -> None:
    own = {name: Field("string", f"io.debezium.{name}").own for name in ("data.Uuid", "data.Json", "time.Interval")}
    assert own == {"data.Uuid": "UUID", "data.Json": "JSONB", "time.Interval": "INTERVAL"}
    assert Field("string", "io.debezium.data.Enum").own == ""

"""What every target does, mode by mode. A difference is declared on the backend, and the support matrix shows it."""

import random
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any

import pytest

from ematix_flow import ematix, pk
from ematix_flow.sinks.base import SchemaDrift, TargetRefused
from ematix_flow.types import JSON, UUID, BigInt, Integer, Numeric, String, Text, TimestampTZ
from tests.contract.backends import TABLE, Backend
from tests.contract.feeding import Feed, at
from tests.contract.history import History

ORDERS = "id long, name string"
VERSIONS = ("id", "name", "valid_from", "valid_to", "is_current")


@ematix.table(schema="main", name=TABLE)
class Declared:
    id: Annotated[BigInt, pk()]
    name: String[5] | None
    amount: Numeric[10, 2]

    __unique_constraints__ = (("name",),)


@ematix.table(schema="main", name=TABLE)
class Parts:
    id: BigInt | None
    part: Text | None
    name: Text


@ematix.table(schema="main", name="payments")
class Payments:
    id: Annotated[BigInt, pk()]
    amount: Numeric[10, 2]


def test_append_adds_the_rows_of_each_batch(backend: Backend) -> None:
    feed = Feed(backend, ORDERS)
    assert feed.write((1, "a"), (2, None)).done
    assert feed.write((1, "a")).done
    assert feed.values("id", "name") == [(1, "a"), (1, "a"), (2, None)]


def test_a_repeated_batch_changes_nothing(backend: Backend) -> None:
    feed = Feed(backend, ORDERS)
    feed.write((1, "a"), (2, "b"))
    assert not feed.write((1, "a"), (2, "b"), again=True).done
    assert feed.values("id") == [(1,), (2,)]


def test_truncate_replaces_everything(backend: Backend) -> None:
    feed = Feed(backend, ORDERS, mode="truncate", primary_key=["id"])
    feed.write((1, "a"), (2, "b"))
    feed.write((2, "c"), (3, "d"))
    assert feed.values("id", "name") == [(2, "c"), (3, "d")]
    feed.write()
    assert feed.values("id", "name") == []


def test_merge_inserts_new_keys_and_updates_what_differs(backend: Backend) -> None:
    feed = Feed(backend, "id long, part int, name string", mode="merge", keys=["id", "part"])
    feed.write((1, 1, "a"), (1, 2, None), (2, 1, "same"), (3, 1, "gone"))
    feed.write((1, 1, "b"), (1, 2, "set"), (2, 1, "same"), (3, 1, None), (4, 1, "new"))
    assert feed.values("id", "part", "name") == [
        (1, 1, "b"),
        (1, 2, "set"),
        (2, 1, "same"),
        (3, 1, None),
        (4, 1, "new"),
    ]


def test_merge_leaves_an_unchanged_row_as_it_was_loaded(backend: Backend) -> None:
    feed = Feed(backend, "id long, name string, amount double", mode="merge", table=Declared)
    feed.write((1, None, 1.0), (2, "b", 2.0))
    before = {row["id"]: row["_loaded_at"] for row in feed.rows()}
    feed.write((1, None, 1.0), (2, "c", 2.0))
    assert feed.values("id", "name", "_batch_id") == [(1, None, "shop/0"), (2, "c", "shop/1")]
    after = {row["id"]: row["_loaded_at"] for row in feed.rows()}
    assert after[1] == before[1]
    assert after[2] > before[2]


def test_merge_changes_chosen_columns_sees_what_is_gone_and_counts(backend: Backend) -> None:
    how: dict[str, Any] = {"update_columns": ["a"], "compare_columns": ["b"], "handle_deletes": "soft"}
    feed = Feed(backend, "id long, a string, b string", mode="merge", keys=["id"], **how)
    assert dict(feed.write((1, "x", "x"), (2, "y", "y"), (3, "z", None)).counts) == {
        "inserted": 3, "updated": 0, "deleted": 0, "unchanged": 0,
    }  # fmt: skip
    second = feed.write((1, "other", "x"), (2, "Y", "Y"), (4, "n", "n"))
    assert dict(second.counts) == {"inserted": 1, "updated": 1, "deleted": 1, "unchanged": 1}
    assert [(*row[:3], bool(row[3])) for row in feed.values("id", "a", "b", "_is_deleted")] == [
        (1, "x", "x", False), (2, "Y", "y", False), (3, "z", None, True), (4, "n", "n", False),
    ]  # fmt: skip
    third = feed.write((1, "x", "x"), (2, "Y", "y"), (3, "z", None), (4, "n", "n"))
    assert dict(third.counts) == {"inserted": 0, "updated": 1, "deleted": 0, "unchanged": 3}
    assert not any(gone for (gone,) in feed.values("_is_deleted"))


def test_last_by_time_then_by_order_wins_within_a_batch(backend: Backend) -> None:
    feed = Feed(backend, ORDERS, mode="merge", keys=["id"])
    feed.write((1, "late"), (1, "early"), (2, "first"), (2, "second"), hours=[5, 3, 4, 4])
    assert feed.values("id", "name") == [(1, "late"), (2, "second")]


def test_a_null_key_is_a_key(backend: Backend) -> None:
    feed = Feed(backend, "id long, part string, name string", mode="merge", keys=["id", "part"])
    feed.write((None, "x", "a"), (None, "x", "b"), (1, None, "c"))
    feed.write((None, "x", "d"), (1, None, "e"), (None, None, "f"))
    assert feed.values("id", "part", "name") == [(1, None, "e"), (None, "x", "d"), (None, None, "f")]


def test_merge_deletes_a_withdrawn_row(backend: Backend) -> None:
    feed = Feed(backend, "id long, part string, name string", mode="merge", keys=["id", "part"], table=Parts)
    feed.write(*((id, part, "old") for id in (None, 1, 2) for part in (None, "x", "y")))
    batch = [
        (1, "x", None, True, 0),
        (None, "x", None, True, 0),
        (2, None, None, True, 0),
        (None, None, None, True, 0),
        (7, "x", None, True, 0),  # was never there
        (1, None, None, True, 0), (1, None, "back", False, 0),
        (3, "x", "new", None, 0), (3, "x", None, True, 0),
        (2, "x", None, True, 5), (2, "x", "earlier", False, 4),
        (2, "y", "changed", None, 0),
        (4, "x", "added", None, 0),
    ]  # fmt: skip
    rows, gone, hours = [row[:3] for row in batch], [row[3] for row in batch], [row[4] for row in batch]
    left = [
        (1, "y", "old"), (1, None, "back"), (2, "y", "changed"), (4, "x", "added"), (None, "y", "old"),
    ]  # fmt: skip
    assert feed.write(*rows, hours=hours, gone=gone).done
    assert feed.values("id", "part", "name") == left
    assert not feed.write((4, "x", None), gone=[True], again=True).done
    assert feed.values("id", "part", "name") == left


def test_a_withdrawn_row_is_not_refused_and_frees_what_is_unique(backend: Backend) -> None:
    feed = Feed(backend, "id long, name string, amount double", mode="merge", table=Declared)
    feed.write((1, "a", 1.0), (2, "b", 2.0))
    batch: list[Any] = [(3, "a", 3.0), (1, None, None), (9, None, None)]
    assert feed.refusals(feed.stage(*batch, gone=[False, True, True])) == {}
    feed.write(*batch, gone=[False, True, True])
    assert feed.values("id", "name") == [(2, "b"), (3, "a")]


def test_scd2_keeps_every_version_of_a_batch(backend: Backend) -> None:
    feed = Feed(backend, ORDERS, mode="scd2", keys=["id"])
    feed.write((1, "b"), (1, "a"), (1, "b"), (1, "c"), (2, None), hours=[2, 1, 3, 4, 1])
    feed.write((1, "c"), (2, None), (2, "x"), hours=[6, 6, 7])
    assert feed.values(*VERSIONS) == [
        (1, "a", at(1), at(2), False),
        (1, "b", at(2), at(4), False),
        (1, "c", at(4), None, True),
        (2, "x", at(7), None, True),
        (2, None, at(1), at(7), False),
    ]


def test_scd2_splits_the_interval_that_an_older_event_falls_into(backend: Backend) -> None:
    feed = Feed(backend, ORDERS, mode="scd2", keys=["id"])
    feed.write((1, "a"), (1, "c"), hours=[2, 6])
    feed.write((1, "b"), (1, "a"), (1, "first"), hours=[4, 3, 1])
    assert feed.values(*VERSIONS) == [
        (1, "a", at(2), at(4), False),
        (1, "b", at(4), at(6), False),
        (1, "c", at(6), None, True),
        (1, "first", at(1), at(2), False),
    ]


def test_scd2_replaces_a_version_of_the_same_time_and_repeats_nothing(backend: Backend) -> None:
    feed = Feed(backend, ORDERS, mode="scd2", keys=["id"])
    feed.write((1, "a"), (1, "b"), hours=[1, 3])
    feed.write((1, "z"), (1, "A"), (1, "c"), hours=[1, 1, 5])
    once = feed.rows()
    feed.write((1, "z"), (1, "A"), (1, "c"), hours=[1, 1, 5])
    assert feed.rows() == once
    assert feed.values(*VERSIONS) == [
        (1, "A", at(1), at(3), False),
        (1, "b", at(3), at(5), False),
        (1, "c", at(5), None, True),
    ]


def test_scd2_closes_what_the_source_no_longer_shows_and_takes_it_up_again(backend: Backend) -> None:
    feed = Feed(backend, ORDERS, mode="scd2", keys=["id"], handle_deletes="soft")
    feed.write((1, "a"), (2, "b"), hours=[1, 1])
    second = dict(feed.write((1, "a"), hours=[1]).counts)
    assert (second.get("closed"), second.get("unchanged")) == (1, 1)
    assert not feed.write((1, "a"), hours=[1]).counts.get("closed")
    assert [(id, current) for id, current in feed.values("id", "is_current")] == [(1, True), (2, False)]
    assert feed.write((1, "a"), (2, "b"), hours=[1, 1]).counts["inserted"] == 1
    once = feed.values(*VERSIONS)
    assert [(id, name, current) for id, name, *_, current in once] == [
        (1, "a", True), (2, "b", False), (2, "b", True),
    ]  # fmt: skip
    feed.write((1, "a"), (2, "b"), hours=[1, 1])
    assert feed.values(*VERSIONS) == once


def test_scd2_closes_keys_that_were_not_shown_for_the_ttl(backend: Backend) -> None:
    how: dict[str, Any] = {"mode": "scd2", "keys": ["id"], "compare_columns": ["name"]}
    Feed(backend, "id long, name string, note string", **how).write((1, "a", "x"), (2, "b", "y"), hours=[1, 1])
    patient = Feed(backend, "id long, name string, note string", ttl="1h", **how)
    assert not patient.write((1, "a", "other"), hours=[2]).counts.get("closed")
    at_once = Feed(backend, "id long, name string, note string", ttl=timedelta(microseconds=1), **how)
    third = dict(at_once.write((1, "a", "x"), hours=[3]).counts)
    assert (third.get("closed"), third.get("inserted", 0), third.get("unchanged")) == (1, 0, 1)
    assert at_once.values("id", "note", "is_current") == [(1, "x", True), (2, "y", False)]


def test_scd2_agrees_with_a_plain_model_over_random_histories(backend: Backend) -> None:
    feed, model, chance = Feed(backend, ORDERS, mode="scd2", keys=["id"]), History(), random.Random(4)
    for _ in range(3):
        events = [
            (chance.choice([None, *range(20)]), chance.choice(["a", "b", None]), chance.randrange(12))
            for _ in range(80)
        ]
        feed.write(*((key, name) for key, name, _ in events), hours=[hour for *_, hour in events])
        model.take([(key, name, at(hour)) for key, name, hour in events])
        assert feed.values(*VERSIONS) == sorted(model.rows(), key=repr)


def test_every_type_comes_back_as_it_was(backend: Backend) -> None:
    feed = Feed(
        backend,
        "yes boolean, tiny tinyint, small smallint, whole int, big bigint, single float, real double, "
        "exact decimal(38, 10), text string, bytes binary, day date, moment timestamp, wall timestamp_ntz, "
        "many array<int>, by_name map<string, int>, both struct<a: int, b: string>",
    )
    moment = datetime(2026, 5, 1, 23, 59, 59, 999999, tzinfo=UTC)
    full: tuple[Any, ...] = (
        True, -128, -(2**15), 2**31 - 1, -(2**63), 1.5, 0.1,
        Decimal("-1234567890123456789012345678.0123456789"), "ünï'\"\n\0 007", b"\0\xff", date(1, 1, 1), moment,
        moment.replace(year=9999, tzinfo=None), [1, None], {"a": 1}, {"a": 1, "b": None},
    )  # fmt: skip
    feed.write(full, (None,) * len(full))
    (empty, found) = sorted(feed.rows(), key=lambda row: row["big"] is not None)
    assert dict(found) == dict(zip(found, full, strict=True))
    assert set(empty.values()) == {None}


def test_a_declared_class_becomes_the_table(backend: Backend) -> None:
    @ematix.table(schema="main", name=TABLE)
    class Wide:
        id: Annotated[Integer, pk()]
        name: String[5]
        amount: Numeric[10, 2] | None
        seen: TimestampTZ | None
        tag: UUID | None
        body: JSON | None
        note: Text | None

    feed = Feed(backend, "name string, id long, amount string, seen timestamp, tag string, body string", table=Wide)
    tag = "6f9619ff-8b86-d011-b42d-00c04fc964ff"
    feed.write(("a", 1, "1.5", at(1), tag, '{"a": [1]}'))
    (row,) = feed.rows()
    assert list(row) == ["id", "name", "amount", "seen", "tag", "body", "note", "_loaded_at", "_batch_id"]
    assert (row["id"], str(row["tag"]), row["body"], row["note"]) == (1, tag, '{"a": [1]}', None)
    assert Decimal(row["amount"]) == Decimal("1.50")
    fields = {field.name: field for field in feed.schema.fields}
    assert list(fields) == ["name", "id", "amount", "seen", "tag", "body"]
    assert [name for name, field in fields.items() if not field.nullable] == ["name", "id"]
    assert fields["name"].metadata == {"max_length": 5}
    assert fields["amount"].dataType.simpleString() == "decimal(10,2)"


def test_drift_is_an_error_that_names_every_difference(backend: Backend) -> None:
    Feed(backend, "id int, name string, day date").write((1, "a", date(2026, 1, 1)))
    fitting = Feed(backend, "DAY date, Id smallint")
    fitting.write((date(2026, 1, 2), 2))
    assert fitting.values("id", "name") == [(1, "a"), (2, None)]
    with pytest.raises(SchemaDrift) as error:
        Feed(backend, "id string, name string, day date, more double").write(("x", "a", None, 1.0))
    assert [difference.split()[1] for difference in error.value.differences] == ["id", "more"]
    assert "on_drift" in error.value.next_step
    with pytest.raises(SchemaDrift, match="amount takes no NULL"):
        Feed(backend, "id long", table=Payments).write((1,))


def test_drift_evolves_the_table(backend: Backend) -> None:
    Feed(backend, "id int, whole int, single float").write((1, 1, 0.5))
    feed = Feed(backend, "id bigint, whole double, single double, extra string", on_drift="evolve")
    feed.write((2**40, 1.5, 0.1, "x"))
    assert feed.values("id", "whole", "single", "extra") == [(1, 1, 0.5, None), (2**40, 1.5, 0.1, "x")]
    with pytest.raises(SchemaDrift, match="no wider type"):
        Feed(backend, "id string", on_drift="evolve").write(("x",))


def test_drift_is_ignored(backend: Backend) -> None:
    Feed(backend, "id bigint, name string").write((1, "a"))
    feed = Feed(backend, "id string, name string, extra string", on_drift="ignore")
    feed.write(("2", "b", "x"))
    assert feed.schema.fieldNames() == ["id", "name"]
    assert sorted((row["id"], row["name"], len(row)) for row in feed.rows()) == [(1, "a", 2), (2, "b", 2)]


def test_refused_rows_are_found_exactly(backend: Backend) -> None:
    feed = Feed(backend, "id long, name string, amount double", table=Declared)
    feed.write((1, "a", 1.0), (2, "b", 1.0))
    rows = [(number, f"n{number}", 1.0) for number in range(10, 30)]
    rows[3], rows[7], rows[15], rows[19] = (1, "x", 1.0), (40, "a", 1.0), (12, "y", 1.0), (41, "n10", 1.0)
    refused = feed.refusals(feed.stage(*rows))
    assert list(refused) == [3, 7, 15, 19]
    assert all(reason and "\n" not in reason for reason in refused.values())
    assert len(feed.rows()) == 2
    with pytest.raises(TargetRefused):
        feed.write(*rows)
    feed.write(*(row for number, row in enumerate(rows) if number not in refused))
    assert len(feed.rows()) == 2 + 16

"""What `flow validate` says of a pipeline."""

import json
from pathlib import Path
from typing import Any

import pytest

from ematix_flow.ops.cli import main
from tests.orders import Orders


@pytest.fixture(autouse=True)
def in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def validated(capsys: pytest.CaptureFixture[str], text: str, *, code: int = 0) -> dict[str, Any]:
    Path("p.toml").write_text(text)
    assert main(["validate", "p.toml", "--format", "json"]) == code
    answer = json.loads(capsys.readouterr().out)
    assert answer["valid"] is (code == 0)
    (one,) = answer["pipelines"]
    return dict(one)


def test_the_promise_of_each_target_comes_with_its_reason(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    Path("p.toml").write_text(orders.toml(sql="SELECT id FROM source", on_error="dlq", targets=("duckdb", "parquet")))
    assert main(["validate", "p.toml"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == "orders (p.toml:1)"
    assert lines[1].startswith("source source (object_store_local)")
    assert lines[2] == "transform SELECT id FROM source; bad rows: dlq"
    assert lines[3] == "target orders (duckdb, append)"
    assert lines[4].startswith("exactly once: a repeated batch")
    assert lines[5] == "target object_store_local (object_store_local, append)"
    assert lines[6].startswith("exactly once: ")
    assert lines[-1] == "1 pipeline declared correctly"


def test_the_promise_is_computed(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    one = validated(capsys, orders.toml(more='[state_store]\nkind = "in_memory"'))
    (target,) = one["targets"]
    assert target["promise"] == "at least once"


def test_a_part_that_is_not_built_yet_is_valid_and_named(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    text = orders.toml(sql="SELECT * FROM source", table='keys = ["id"]', more="[transform.cdc]").replace(
        f'[[targets]]\nkind = "duckdb"\npath = "{orders.database}"',
        '[[targets]]\nkind = "bigquery"\nproject = "p"\ndataset = "d"',
    )
    one = validated(capsys, text)
    assert "[transform] sql with [transform.cdc]" in str(one["not_built"])
    assert "target 'bigquery'" in str(one["not_built"])
    assert main(["validate", "p.toml"]) == 0
    assert "1 pipeline cannot be run by this version yet" in capsys.readouterr().out


def test_unknown_connections_are_all_told_with_the_places(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    text = orders.toml(targets=()) + '\n[target]\nconnection = "wharehouse"\n[target.table]\nname = "t"\n'
    text = text.replace('kind = "object_store_local"', 'connection = "lake"')
    text = "\n".join(line for line in text.splitlines() if not line.startswith(("path", "format")))
    one = validated(capsys, text, code=2)
    assert [problem["code"] for problem in one["problems"]] == ["unknown-connection"] * 2
    assert main(["validate", "p.toml"]) == 2
    told = capsys.readouterr()
    assert 'error[unknown-connection]: no connection is named "lake"' in told.err
    assert "declared correctly" not in told.out


def test_without_a_name_all_that_is_declared_here_is_checked(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate"]) == 2
    assert "no pipelines are declared here" in capsys.readouterr().err
    Path("a.toml").write_text(orders.toml())
    Path("b.toml").write_text(orders.toml().replace('"orders"', '"more"', 1))
    assert main(["validate"]) == 0
    assert "2 pipelines declared correctly" in capsys.readouterr().out
    Path("c.toml").write_text('pipeline_name = "broken"\n')
    assert main(["validate", "--format", "json"]) == 2
    told = json.loads(capsys.readouterr().out)
    assert (told["valid"], [one["name"] for one in told["pipelines"]]) == (False, ["orders", "more"])
    assert [one["code"] for one in told["problems"]] == ["bad-declaration"]


def test_sql_of_another_dialect_is_checked(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    text = orders.toml(sql="SELECT FROM WHERE").replace("[transform]", '[transform]\ndialect = "duckdb"')
    one = validated(capsys, text, code=2)
    assert [problem["code"] for problem in one["problems"]] == ["bad-sql"]


def test_a_connection_given_by_name_is_held_to_the_rules_of_its_kind(
    orders: Orders, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMATIX_FLOW_DSN_WAREHOUSE", "duckdb:///warehouse.db")
    one = validated(capsys, orders.toml(targets=()) + '\n[target]\nconnection = "warehouse"', code=2)
    (problem,) = one["problems"]
    assert "target.table: missing" in problem["message"] or "table: missing" in problem["message"]


def test_spark_sql_that_cannot_be_read_is_a_warning(orders: Orders, capsys: pytest.CaptureFixture[str]) -> None:
    one = validated(capsys, orders.toml(sql="SELECT id x fro source"))
    assert one["problems"] == []
    assert main(["validate", "p.toml"]) == 0
    assert capsys.readouterr().err == (
        "warning: orders: the transform could not be checked: not valid spark SQL near 'fro' (line 1, column 15)\n"
    )


def test_a_run_of_what_is_not_built_is_refused_before_spark_starts(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("p.toml").write_text(
        orders.toml(targets=()) + '\n[target]\nkind = "bigquery"\nproject = "p"\ndataset = "d"\ntable = "t"\n'
    )
    assert main(["run", "p.toml", "--bounded"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error[not-built]: target 'bigquery'")
    assert "starting Spark" not in told


def test_kafka_promises_by_delivery_and_a_dead_letter_topic_needs_a_cluster(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = '\nkind = "kafka"\nbootstrap_servers = "h:9092"\n'
    text = f'[source]{cluster}query = "a"\nschema = "id long"\n[target]{cluster}topic = "b"\n'
    for delivery, promise in (("at_least_once", "at least once"), ("exactly_once", "exactly once")):
        one = validated(capsys, f'pipeline_name = "p"\ndelivery = "{delivery}"\n{text}')
        assert one["targets"][0]["promise"] == promise
        assert "transaction" in one["targets"][0]["reason"]
    one = validated(capsys, f'dead_letter_topic = "bad"\n{orders.toml()}', code=2)
    assert "neither a source nor a target is kafka" in str(one["problems"])


def test_the_example_between_topics_is_declared_correctly(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "examples/topics/paid.toml").read_text()
    assert validated(capsys, text)["targets"][0]["promise"] == "exactly once"

"""What `@ematix.pipeline` takes, what it refuses at once, and what `flow` knows of it."""

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from ematix_flow import DuckDBConnection, ematix, pipelines, pk, transforms
from ematix_flow.cron_fields import schedule_problem
from ematix_flow.errors import DeclarationError, UsageError
from ematix_flow.expectations import expectations_of
from ematix_flow.job_fields import Retry
from ematix_flow.normalize import deduplicate_by, filter_where, limit
from ematix_flow.ops.cli import main
from ematix_flow.types import BigInt, Text

SHOP = DuckDBConnection(path="shop.duckdb")


@ematix.table(schema="main", name="orders")
class Orders:
    id: Annotated[BigInt, pk()]
    name: Text | None


@ematix.table(schema="main", name="lines")
class Lines:
    text: Text | None


@pytest.fixture(autouse=True)
def nothing_declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipelines, "_declared", {})
    monkeypatch.setattr(pipelines, "_ambiguous", {})
    monkeypatch.setattr(transforms, "_declared", {})


def declared(**keywords: Any) -> Any:
    given = {"target": Orders, "target_connection": SHOP, "source_table": "raw", "name": "load", **keywords}
    return ematix.pipeline(**given)(lambda: None)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no target": ({"target": None}, r"target: missing; allowed: target=Cls, or targets="),
    "retry": ({"retry": {"max_attempt": 3}}, r'retry\.max_attempt: unknown key; did you mean "max_attempts"'),
    "backoff": ({"retry": {"backoff": "never"}}, r'retry\.backoff: found "never"; allowed: fixed, linear, exponential'),
    "keys": ({"mode": "merge", "keys": ["ids"]}, r'keys: found "ids".*did you mean "id"'),
    "cron": ({"schedule": "61 * * * *"}, r'schedule: found "61 \* \* \* \*": minute: "61" is not from 0 to 59'),
    "fields": ({"schedule": "* * * *"}, r"schedule: .* has 4 fields"),
    "zone": ({"timezone": "Mars/Olympus"}, r'timezone: found "Mars/Olympus"'),
    "deletes": ({"handle_deletes": "hard"}, r'handle_deletes: has no meaning for mode = "append"'),
    "incremental": (
        {"mode": "merge", "handle_deletes": "hard", "incremental_column": "id"},
        r"handle_deletes: needs a source that shows all",
    ),
    "ttl": ({"ttl": timedelta(days=1)}, r'ttl: has no meaning for mode = "append"; allowed: scd2'),
    "ttl text": ({"mode": "scd2", "ttl": "soon"}, r'ttl: found "soon"; allowed: seconds'),
    "policy": ({"on_quality_failure": "explode"}, r"on_quality_failure: .* allowed: warn, fail"),
    "expectations": ({"expectations": lambda t: t.row_count()}, r"no limit"),
    "checks": (
        {"expectations": lambda t: t.column("id").matches("x")},
        r"AttributeError: .*'matches'; allowed: .*regex",
    ),
    "freshness": ({"freshness_column": "nmae"}, r'freshness_column: found "nmae".*did you mean "name"'),
    "only the last": ({"mode": "truncate", "incremental_column": "id"}, r"incremental_column: .* what came last"),
    "no keys": ({"target": Lines, "mode": "merge"}, r'  - keys: missing; mode = "merge" needs keys'),
    "itself": ({"depends_on": ["load"]}, r'depends_on: found "load", which is the pipeline itself'),
}


@pytest.mark.parametrize(("keywords", "told"), REFUSED.values(), ids=REFUSED)
def test_mistakes_are_refused_at_declaration(keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(DeclarationError, match=told) as error:
        declared(**keywords)
    assert str(error.value).startswith('pipeline "load" (')
    assert pipelines.declared() == ()


def test_several_mistakes_are_told_together() -> None:
    with pytest.raises(DeclarationError) as error:
        declared(mdoe="merge", schedule="* * * * 8", retry={"tries": 1})
    assert {problem.key for problem in error.value.problems} == {"mdoe", "schedule", "retry.tries"}


@pytest.mark.parametrize(
    "schedule", ["*/5 0-6 * * MON-FRI", "0 0 1,15 jan-mar 7", "30 4/2 * * sun", "0 0 29 2 *", "0 0 31 2 1"]
)
def test_schedules_that_cron_understands(schedule: str) -> None:
    assert schedule_problem(schedule) == ""


@pytest.mark.parametrize(
    "schedule", ["@daily", "*/0 * * * *", "5-1 * * * *", "* 24 * * *", "* * 0 * *", "0 0 31 2,4 *"]
)
def test_schedules_that_it_does_not(schedule: str) -> None:
    assert schedule_problem(schedule)


def test_the_time_between_attempts_grows_as_declared() -> None:
    waits = {
        backoff: [Retry(backoff=backoff, base_secs=10, max_backoff_secs=35).wait_after(n) for n in (1, 2, 3, 4)]
        for backoff in ("fixed", "linear", "exponential")
    }
    assert waits == {"fixed": [10] * 4, "linear": [10, 20, 30, 35], "exponential": [10, 20, 35, 35]}


def test_a_time_that_is_no_column_of_the_target_only_orders() -> None:
    of_query = declared(source_table=None, mode="merge", event_timestamp_column="seen")
    assert of_query.sql(of_table=False) == "SELECT * EXCEPT (`seen`) FROM source"
    assert declared(source_table=None, mode="merge", event_timestamp_column="NAME").sql(of_table=False) is None


def test_columns_that_only_choose_rows_go_no_further() -> None:
    chosen = [deduplicate_by("id", order_by="changed DESC"), filter_where("NAME <> 'x' AND paid"), limit(9)]
    sql = declared(source_table=None, transforms_pre=chosen).sql(of_table=False)
    assert sql.startswith("SELECT * EXCEPT (`changed`, `paid`) FROM (SELECT * FROM (SELECT * FROM (")
    evolving = declared(source_table=None, transforms_pre=chosen, on_drift="evolve", name="evolving")
    assert "EXCEPT (`changed`" not in evolving.sql(of_table=False)
    within = declared(source_table=None, transforms_pre=[filter_where("id IN (SELECT max(n) FROM v)")], name="within")
    assert within.sql(of_table=False) == "SELECT * FROM (SELECT * FROM source) WHERE id IN (SELECT max(n) FROM v)"


def test_what_a_target_is_expected_to_be() -> None:
    def sound(t: Any) -> None:
        t.column("id").not_null().unique()
        t.column("name").is_in(["a", "b"]).regex("^.$")
        t.row_count(at_least=1).freshness("seen", within="6h")

    found = [one.name for one in expectations_of(sound)]
    assert found == ["id.not_null", "id.unique", "name.is_in", "name.regex", "row_count", "seen.freshness"]
    assert [one.name for one in expectations_of({"positive": "id > 0"})] == ["positive"]


def test_keys_of_duplicates_alone_or_in_a_list() -> None:
    assert deduplicate_by("a", "b") == deduplicate_by(["a", "b"]) == deduplicate_by(keys=("a", "b"))


def test_a_transform_is_known_by_its_name() -> None:
    @ematix.transform(target_connection=SHOP)
    def tidy(connection: Any) -> None: ...

    assert transforms.known("tidy") is tidy
    with pytest.raises(DeclarationError, match='did you mean "schedule"'):
        ematix.transform(shedule="* * * * *")
    with pytest.raises(DeclarationError, match="more than two"):
        ematix.transform()(_of_three)


def _of_three(a: Any, b: Any, c: Any) -> None:
    """One too many."""


MODULE = """
from typing import Annotated
from ematix_flow import DuckDBConnection, ematix, pk
from ematix_flow.types import BigInt, Text

@ematix.table(schema="main", name="orders")
class Orders:
    id: Annotated[BigInt, pk()]
    name: Text | None

shop = DuckDBConnection(path="shop.duckdb")

@ematix.pipeline(target=Orders, target_connection=shop, source_table="raw", mode="merge")
def load_orders(): ...

@ematix.transform(target_connection=shop)
def count(connection):
    connection.execute("CREATE TABLE counted AS SELECT COUNT(*) AS n FROM main.orders")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    import duckdb

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules | {})
    Path("etl.py").write_text(MODULE)
    with duckdb.connect("shop.duckdb") as db:
        db.execute("CREATE TABLE raw AS SELECT 1::bigint AS id, 'a' AS name UNION ALL SELECT 2, 'b'")

    def rows(query: str) -> list[tuple[Any, ...]]:
        with duckdb.connect("shop.duckdb") as db:
            return db.execute(query).fetchall()

    return rows


def answered(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    """As from a process of its own."""
    sys.modules.pop("etl", None)
    pipelines.clear()
    assert main([*words, "--module", "etl", "--format", "json"]) == code
    return json.loads(capsys.readouterr().out)


def test_flow_runs_it_by_name(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (listed,) = answered(capsys, "list")["pipelines"]
    assert (listed["name"], listed["sources"], listed["targets"]) == ("load_orders", ["raw"], ["main.orders"])
    assert answered(capsys, "dry-run", "load_orders")["path"] == "same_db"
    result = answered(capsys, "run", "load_orders")
    assert (result["status"], result["rows_inserted"]) == ("success", 2)
    (run,) = answered(capsys, "runs", "list", "load_orders")
    assert run["run_id"] == result["run_id"]
    assert main(["transform", "run", "count", "-m", "etl"]) == 0
    assert shop("SELECT n FROM counted") == [(2,)]
    assert main(["logs", run["run_id"], "-m", "etl"]) == 0
    assert f"run ended pipeline=load_orders run_id={run['run_id']} status=success" in capsys.readouterr().out
    assert main(["transform", "run", "count", "-m", "etl"]) == 1, "its table is there already"
    assert 'error[function-failed]: transform "count" failed: CatalogException' in capsys.readouterr().err


def test_flow_validate_tells_what_a_snapshot_promises(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (one,) = answered(capsys, "validate", "load_orders")["pipelines"]
    assert one["targets"][0]["promise"] == "exactly once"
    assert "reads the table as it is then" in one["targets"][0]["reason"]
    assert "nothing tells which of two rows of a key" in one["warnings"][0]


def test_a_name_that_two_files_have_given_away_is_refused_only_where_it_is_asked_for(
    shop: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("other.py").write_text(MODULE.replace("merge", "append"))
    assert main(["run", "load_orders", "-m", "etl", "-m", "other"]) == 2
    assert "declared twice, differently" in capsys.readouterr().err
    assert repr(sys.modules["etl"].load_orders.job.mode) != repr(sys.modules["other"].load_orders.job.mode)
    with pytest.raises(UsageError, match=r"etl\.py:\d+ and in .*other\.py:\d+"):
        pipelines.get("load_orders")


def test_flow_says_what_does_not_fit(shop: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["consume", "load_orders", "-m", "etl"]) == 2
    assert "flow run load_orders" in capsys.readouterr().err
    assert main(["transform", "run", "cuont", "-m", "etl"]) == 2
    assert 'did you mean "count"' in capsys.readouterr().err

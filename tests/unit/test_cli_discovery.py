"""Which pipelines `flow` finds by name, and what it says when it does not."""

import json
import sys
from pathlib import Path

import pytest

from ematix_flow import pipelines
from ematix_flow.ops.cli import main

FIELDS = """
[source]
kind = "object_store_local"
path = "in"
format = "json_lines"
[target]
kind = "duckdb"
path = "out.db"
[target.table]
name = "t"
"""

MODULE = """
from ematix_flow import DuckDBConnection, ObjectStoreLocalConnection, ematix

@ematix.streaming_pipeline(
    source=ObjectStoreLocalConnection(path="in", format="json_lines"),
    target=DuckDBConnection(path="out.db"), target_table=("main", "t"),
)
def {name}(): ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", sys.modules | {})
    monkeypatch.setattr(pipelines, "_declared", {})
    return tmp_path


def declare(path: Path, name: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'pipeline_name = "{name}"\n{FIELDS}')


def listed(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, list[dict[str, str]]]:
    assert main(["list", "--format", "json", *words]) == 0
    found: dict[str, list[dict[str, str]]] = json.loads(capsys.readouterr().out)
    return found


def test_every_place_is_listed_and_other_toml_files_are_left_alone(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "etl_orders.py").write_text(MODULE.format(name="from_module"))
    (folder / "pipelines.py").write_text(MODULE.format(name="from_pipelines_py"))
    declare(folder / "a.toml", "from_file")
    declare(folder / "pipelines" / "b.toml", "from_folder")
    declare(folder / ".hidden.toml", "hidden")
    (folder / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    (folder / "notes.toml").write_text("this is no TOML")
    found = listed(capsys, "--module", "etl_orders")
    assert [(one["name"], one["place"]) for one in found["pipelines"]] == [
        ("from_module", "module etl_orders"),
        ("from_pipelines_py", "pipelines.py"),
        ("from_file", "a.toml"),
        ("from_folder", "pipelines/b.toml"),
    ]
    assert found["problems"] == []


def test_a_daemon_is_offered_only_what_does_not_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = """
from ematix_flow.types import BigInt

@ematix.table()
class Orders:
    id: BigInt

@ematix.pipeline(target=Orders, target_connection=DuckDBConnection(path="out.db"), source_table="raw")
def nightly(): ...
"""
    (folder / "pipelines.py").write_text(MODULE.format(name="all_day") + batch)
    assert main(["consume-list", "--format", "json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["pipelines"]] == ["all_day"]
    assert {one.name for one in pipelines.declared()} == {"all_day", "nightly"}


def test_a_broken_declaration_is_shown_and_hides_no_other(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declare(folder / "good.toml", "good")
    (folder / "half.toml").write_text('pipeline_name = "half"\n')
    (folder / "torn.toml").write_text('pipeline_name = "torn\n')
    (folder / "pipelines.py").write_text("import json\n\njson.loads('{')\n")
    found = listed(capsys)
    assert [one["name"] for one in found["pipelines"]] == ["good"]
    assert [(one["place"], one["code"]) for one in found["problems"]] == [
        ("pipelines.py", "module-failed"),
        ("half.toml", "bad-declaration"),
        ("torn.toml", "bad-declaration"),
    ]
    assert f"{folder}/pipelines.py:3: JSONDecodeError" in found["problems"][0]["message"]

    assert main(["validate", "good"]) == 0
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "torn.toml cannot be used\nerror[bad-declaration]: torn.toml: 1 problem" in text


def test_an_unknown_name_tells_the_near_one_and_where_it_looked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    declare(folder / "a.toml", "orders")
    (folder / "half.toml").write_text('pipeline_name = "half"\n')
    assert main(["run", "order"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        'error[bad-usage]: there is no pipeline "order"',
        "Looked at:",
        "  - a.toml: orders",
        "  - half.toml: not usable: half.toml: 2 problems",
        'What to do: did you mean "orders"? declared are: orders',
    ]


def test_an_empty_folder_points_to_the_example(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    assert "flow init PATH" in capsys.readouterr().out
    assert main(["run", "orders"]) == 2
    assert f"{folder}/pipelines.py (no such file)" in capsys.readouterr().err


def test_one_of_several_in_a_file_has_to_be_chosen(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner = FIELDS.replace("[source]", "[pipelines.source]").replace("[target", "[pipelines.target")
    text = "".join(f'[[pipelines]]\npipeline_name = "{name}"\n{inner}\n' for name in ("one", "two"))
    (folder / "both.toml").write_text(text)
    assert main(["run", "both.toml"]) == 2
    assert "both.toml declares several pipelines: one, two\nWhat to do: choose one with --pipeline" in (
        capsys.readouterr().err
    )
    assert main(["run", "both.toml", "--pipeline", "tow"]) == 2
    assert 'did you mean "two"? declared are: one, two' in capsys.readouterr().err
    assert main(["validate", "both.toml", "--pipeline", "two", "--format", "json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["pipelines"]] == ["two"]
    assert main(["validate", "both.toml"]) == 0
    assert capsys.readouterr().out.endswith("2 pipelines declared correctly\n")


def test_one_name_for_two_different_pipelines_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    declare(folder / "a.toml", "orders")
    (folder / "b.toml").write_text((folder / "a.toml").read_text().replace('"in"', '"elsewhere"'))
    assert main(["run", "orders"]) == 2
    assert "is declared twice, differently: in a.toml and in b.toml" in capsys.readouterr().err


def test_a_module_that_does_not_exist_or_fails_is_told_in_words(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["list", "--module", "etl.nowhere"]) == 2
    assert 'there is no module "etl.nowhere"' in capsys.readouterr().err
    (folder / "needs_more.py").write_text("import no_such_library\n")
    assert main(["list", "--module", "needs_more"]) == 2
    assert (
        f"{folder}/needs_more.py:1: ModuleNotFoundError: No module named 'no_such_library'" in capsys.readouterr().err
    )
    (folder / "typo.py").write_text("def f(:\n")
    assert main(["--debug", "list", "--module", "typo"]) == 2
    told = capsys.readouterr().err
    assert f"{folder}/typo.py:1: SyntaxError" in told
    assert "Traceback" in told

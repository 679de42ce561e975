"""`flow` without Spark, as a user types it: what is declared, what is wrong with it, and how quickly that is told."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.orders import Orders

FLOW = str(Path(sys.executable).parent / "flow")


def flow(*words: str, cwd: Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([FLOW, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


def test_a_bad_file_exits_2_with_all_its_problems(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text(
        'pipeline_name = "orders"\n[source]\nkind = "object_store_local"\npath = "in"\nformat = "jsn"\n'
        '[target]\nkind = "duckdb"\npath = "o.db"\nmoed = "append"\n[target.table]\nname = "orders"\n'
    )
    told = flow("run", "bad.toml", "--bounded", cwd=tmp_path, code=2)
    assert told.stdout == ""
    assert told.stderr.startswith("error[bad-declaration]: bad.toml: 2 problems\n")
    assert 'bad.toml:5: source.format: found "jsn"' in told.stderr
    assert 'bad.toml:9: target.moed: unknown key; did you mean "mode"?' in told.stderr


def test_an_unknown_name_and_a_missing_file_exit_2(orders: Orders) -> None:
    (orders.folder / "orders.toml").write_text(orders.toml())
    told = flow("consume", "ordrs", cwd=orders.folder, code=2).stderr
    assert told.splitlines()[0] == 'error[bad-usage]: there is no pipeline "ordrs"'
    assert "orders.toml: orders" in told
    assert 'did you mean "orders"?' in told
    assert "there is no file none.toml" in flow("validate", "none.toml", cwd=orders.folder, code=2).stderr


def test_credentials_in_a_file_are_one_clean_warning_that_does_not_show_them(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(
        'pipeline_name = "a"\n[source]\nkind = "postgres"\nurl = "postgresql://u:hunter2@h/db"\nquery = "t"\n'
        '[target]\nkind = "duckdb"\npath = "o.db"\n[target.table]\nname = "t"\n'
    )
    told = flow("validate", "a.toml", cwd=tmp_path)
    (line,) = told.stderr.splitlines()
    assert line.startswith('warning: a.toml: connection "postgres" has credentials in plain text')
    assert "hunter2" not in told.stdout + told.stderr


@pytest.mark.parametrize("command", ["--help", "list", "schema", "validate orders.toml", "connections list", "doctor"])
def test_commands_that_do_not_run_anything_are_quick_and_load_no_spark(orders: Orders, command: str) -> None:
    (orders.folder / "orders.toml").write_text(orders.toml(sql="SELECT id FROM source"))
    program = (
        "import json, sys; from ematix_flow.ops.cli import main; code = main(sys.argv[1:]);"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})), file=sys.stderr); sys.exit(code)"
    )
    told, took = _of_the_processor(program, *command.split(), cwd=orders.folder)
    assert {"pyspark", "py4j", "pandas", "pyarrow"}.isdisjoint(json.loads(told.splitlines()[-1]))
    # About 1.5 s on a usual machine; how fast this one is, Python's own start tells.
    assert took < 16 * sum(_of_the_processor("", cwd=orders.folder)[1] for _ in range(5))


def _of_the_processor(program: str, *words: str, cwd: Path) -> tuple[str, float]:
    """What a program of Python tells, and how long it needs the processor: other work on the machine does not count."""
    before = os.times()
    done = subprocess.run(
        [sys.executable, "-c", program, *words], cwd=cwd, capture_output=True, text=True, check=True
    ).stderr
    after = os.times()
    return done, after.children_user + after.children_system - before.children_user - before.children_system


def test_a_reader_that_stops_reading_is_no_error(tmp_path: Path) -> None:
    with subprocess.Popen([FLOW, "schema"], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""

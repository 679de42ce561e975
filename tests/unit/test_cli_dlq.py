"""`flow dlq`, as far as it needs no Spark: which letters it finds, what it prints, what it refuses."""

import base64
import json
import shutil
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from ematix_flow.ops.cli import main
from ematix_flow.state.dead_letters import DeadLetter, DeadLetters, Which
from ematix_flow.state.home import dead_letters_of
from ematix_flow.state.store import open_store
from ematix_flow.toml import load_toml
from tests.services.postgres import Postgres

NOW = datetime.now(UTC).replace(microsecond=0)

DECLARED = """
pipeline_name = "shop"
[source]
kind = "object_store_local"
path = "in"
format = "json_lines"
[target]
kind = "duckdb"
path = "out.db"
[target.table]
name = "t"
[state_store]
path = "elsewhere"
"""


def letter(number: int, pipeline: str = "orders", **facts: Any) -> DeadLetter:
    given = {
        "pipeline": pipeline, "stage": "decode", "error_code": "bad-json", "error": "no JSON", "source": "source",
        "position": f"a.jsonl#0+{number}", "event_ts": None, "payload_format": "json_lines",
        "payload": f"line {number}".encode(), "failed_at": NOW - timedelta(days=10 - number),
    }  # fmt: skip
    return DeadLetter(**(given | facts))


def keep(*letters: DeadLetter, folder: str | None = None) -> None:
    path = dead_letters_of(letters[0].pipeline, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(DeadLetters(path)) as store:
        store.put(letters)


@pytest.fixture
def flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run `flow dlq` in a folder of its own and give what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 0) -> str:
        assert main(["dlq", *words]) == code
        told = capsys.readouterr()
        return told.err if code else told.out

    return run


def test_stats_of_all_pipelines_and_of_one(flow: Callable[..., str]) -> None:
    assert flow("stats") == "no dead letters\n"
    keep(letter(1), letter(2), letter(3, stage="write", error_code="not-null"))
    keep(letter(1, pipeline="a/b & c"))
    header, *rows, _, _ = flow("stats").splitlines()
    assert header.split() == ["PIPELINE", "STAGE", "CODE", "STATUS", "LETTERS"]
    assert [row.rsplit(maxsplit=4) for row in rows] == [
        ["a/b & c", "decode", "bad-json", "pending", "1"],
        ["orders", "decode", "bad-json", "pending", "2"],
        ["orders", "write", "not-null", "pending", "1"],
    ]
    (one, two) = json.loads(flow("stats", "orders", "--format", "json"))
    assert (one["pipeline"], one["letters"], two["stage"]) == ("orders", 2, "write")


def test_what_is_kept_nowhere_is_told(flow: Callable[..., str]) -> None:
    declared = DECLARED.replace('path = "elsewhere"', 'kind = "in_memory"')
    Path("shop.toml").write_text(declared)
    for command in ("list", "stats", "replay"):
        assert "an in_memory state store, which keeps no dead letters" in flow(command, "shop.toml", code=2)
    assert flow("stats") == "no dead letters\n"


def test_list_filters_and_says_how_to_go_on(flow: Callable[..., str]) -> None:
    keep(letter(1), letter(2, stage="write"), letter(9, payload=b"\xff"))
    assert letter(1).id[:12] in flow("list", "orders")
    assert "`flow dlq show ID`" in flow("list", "orders", "--limit", "1")
    assert "1 of 3" in flow("list", "orders", "--limit", "1")
    assert flow("list", "orders", "--status", "parked") == "orders: no such dead letters\n"

    def listed(*words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(flow("list", "orders", "--format", "json", *words))
        return found

    assert [one["id"] for one in listed("--stage", "write")] == [letter(2).id]
    assert [one["id"] for one in listed("--since", "2d")] == [letter(9).id]
    assert len(listed("--since", (NOW - timedelta(days=8)).isoformat())) == 2
    first, *_, last = listed()
    assert (first["payload"], first["status"], first["attempt"]) == ("line 1", "pending", 1)
    assert (last["payload"], base64.b64decode(last["payload_base64"])) == (None, b"\xff")
    assert 'neither a duration nor a time\nWhat to do: write for example "90s"' in (
        flow("list", "orders", "--since", "soon", code=2)
    )


def test_show_finds_a_letter_by_the_beginning_of_its_id_in_any_pipeline(flow: Callable[..., str]) -> None:
    keep(letter(1), *(letter(n) for n in range(100, 120)))
    keep(letter(2, pipeline="other"))
    shown = flow("show", letter(2, pipeline="other").id[:10])
    assert "pipeline        other\n" in shown
    assert "\nline 2\n" in shown
    assert f"flow dlq replay other --id {letter(2, pipeline='other').id}" in shown
    assert json.loads(flow("show", letter(1).id, "orders", "--format", "json"))["error"] == "no JSON"
    assert 'there is no dead letter "zzz"' in flow("show", "zzz", code=2)
    assert "write more of the id" in flow("show", "", code=2)
    assert 'there is no pipeline "nobody"' in flow("show", letter(1).id, "nobody", code=2)


def test_no_row_can_write_to_the_terminal(flow: Callable[..., str]) -> None:
    nasty = "\x1b[2J\x07\u202eevil\x9b31m\r\n\U000e0041"
    keep(letter(1, payload=nasty.encode() + b"\xfe", error=nasty), letter(2, payload=nasty.encode()))
    for words in (["list", "orders"], ["show", letter(1).id], ["list", "orders", "--format", "json"]):
        assert all(character == "\n" or character.isprintable() for character in flow(*words))
    assert json.loads(flow("show", letter(2).id, "--format", "json"))["payload"] == nasty
    assert "\\x1b[2J\\x07\\u202eevil\\x9b31m\\r\\n\\U000e0041\\xfe" in flow("show", letter(1).id)


def test_parked_letters_are_left_out_of_a_replay(flow: Callable[..., str]) -> None:
    keep(letter(1), letter(2))
    (Path("shop.toml")).write_text(DECLARED.replace('"shop"', '"orders"').replace('path = "elsewhere"', ""))
    assert "parked 2 letters" in flow("park", letter(1).id[:10], letter(2).id)
    assert [one["status"] for one in json.loads(flow("list", "orders", "--format", "json"))] == ["parked", "parked"]
    assert flow("replay", "orders").startswith(
        "orders: nothing to replay; 2 letters parked, `flow dlq replay orders --id"
    )
    assert 'there is no dead letter "zzz"' in flow("park", "zzz", code=2)
    assert 'there is no dead letter "zzz"' in flow("replay", "orders", "--id", "zzz", code=2)
    assert 'there is no pipeline "nobody"' in flow("replay", "nobody", code=2)


def test_purge_needs_to_know_what_and_to_be_sure(flow: Callable[..., str]) -> None:
    keep(letter(1), letter(2), letter(9))
    flow("park", letter(2).id)
    assert "purge needs to know which letters" in flow("purge", "orders", "--yes", code=2)
    assert "What to do: add --yes" in flow("purge", "orders", "--all", code=2)
    with closing(DeadLetters(dead_letters_of("orders"))) as store:
        store.lease(Which(ids=(letter(9).id,)), "r")
    assert flow("purge", "orders", "--status", "parked", "--older-than", "7d", "--yes") == "orders: purged 1 letter\n"
    assert flow("purge", "orders", "--older-than", "30d", "--yes") == "orders: purged 0 letters\n"
    assert flow("purge", "orders", "--all", "--yes") == "orders: purged 1 letter\n"
    assert [one["status"] for one in json.loads(flow("list", "orders", "--format", "json"))] == ["leased"]
    assert "in the hands of a replay" in flow("park", letter(9).id, code=2)


def test_a_declaration_tells_where_the_state_is(flow: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(DECLARED)
    assert flow("list", "shop.toml") == "shop: no dead letters\n"
    assert flow("replay", "shop") == "shop: nothing to replay\n"
    assert not (tmp_path / "elsewhere").exists(), "looking for letters leaves nothing behind"
    keep(letter(1, pipeline="shop"), folder=str(tmp_path / "elsewhere"))
    assert "line 1" in flow("show", letter(1, pipeline="shop").id, "shop.toml")
    assert len(json.loads(flow("list", "shop", "--format", "json"))) == 1
    assert "parked 1 letter;" in flow("park", letter(1, pipeline="shop").id, "--in", "shop")


@pytest.mark.parametrize("kind", ["postgres", "delta"])
def test_letters_of_a_state_store_elsewhere_are_found_from_an_empty_home(
    kind: str, flow: Callable[..., str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    place = f'url = "{request.getfixturevalue("postgres_url")}"' if kind == "postgres" else f'path = "{tmp_path}/lake"'
    text = DECLARED.replace('path = "elsewhere"', f'kind = "{kind}"\n{place}')
    (tmp_path / "shop.toml").write_text(text)
    assert flow("stats") == "no dead letters\n"
    assert not (tmp_path / "lake").exists(), "looking for letters leaves nothing behind"
    (spec,) = load_toml(text=text)
    with closing(open_store(spec)) as store:
        store.divert(letter(number, pipeline="shop") for number in (1, 2, 9))
    shutil.rmtree(tmp_path / ".ematix-flow" / "state")
    ids = [letter(number, pipeline="shop").id for number in (1, 2, 9)]
    assert "shop      decode  bad-json  pending  3" in flow("stats")
    assert "\nline 1\n" in flow("show", ids[0][:10])
    assert "parked 1 letter;" in flow("park", ids[1])
    assert flow("purge", "shop", "--older-than", "5d", "--status", "pending", "--yes") == "shop: purged 1 letter\n"
    listed = json.loads(flow("list", "shop.toml", "--format", "json"))
    assert [(one["id"], one["status"]) for one in listed] == [(ids[1], "parked"), (ids[2], "pending")]
    assert not (tmp_path / ".ematix-flow" / "state").exists()


def test_a_state_store_that_lets_nobody_in_says_so_without_the_password(
    flow: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgres: Postgres
) -> None:
    monkeypatch.setenv("PASSWORD", "s3cret")
    url = f"postgresql://nobody:${{PASSWORD}}@{urlsplit(postgres.url).netloc.rpartition('@')[2]}/nowhere"
    (tmp_path / "shop.toml").write_text(DECLARED.replace('path = "elsewhere"', f'kind = "postgres"\nurl = "{url}"'))
    told = flow("list", "shop", code=1)
    assert "does not accept the pipeline" in told
    assert "s3cret" not in told
    keep(letter(1))
    assert "line 1" in flow("show", letter(1).id), "a whole id that is known here needs no other place"

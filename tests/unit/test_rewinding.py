"""Going back: what a checkpoint keeps when it is cut off after a batch, and how far back it can be cut off."""

from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ematix_flow.errors import UsageError
from ematix_flow.state.batches import Batches
from ematix_flow.state.checkpoint import files_in
from ematix_flow.state.rewinding import rewind, to_batch, to_start, to_time
from ematix_flow.state.store import Store
from tests.checkpoints import logged_files, write_checkpoint

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with closing(Store("orders", tmp_path / "orders")) as store:
        yield store


@pytest.mark.parametrize("spark_has_cleaned_up", [False, True])
@pytest.mark.parametrize("last", [0, 5, 9, 13, 19, 23])
def test_the_log_of_a_file_source_ends_with_the_batch(store: Store, last: int, spark_has_cleaned_up: bool) -> None:
    write_checkpoint(store.checkpoint, 27)
    if spark_has_cleaned_up:
        for entry in range(19):
            for name in (str(entry), f"{entry}.compact"):
                (store.checkpoint / "sources/0" / name).unlink(missing_ok=True)
    rewind(store, last)
    assert logged_files(store.checkpoint) == list(range(last + 1))
    batches = Batches.of_folder(store.checkpoint)
    assert (batches.planned, batches.committed) == (list(range(last + 1)),) * 2


def test_what_is_true_of_the_kept_batches_stays(store: Store) -> None:
    write_checkpoint(store.checkpoint, 7, committed=6, stateful=True)
    before = store.generation
    store.held.mkdir()
    for batch in range(7):
        (store.held / f"{batch}.open.json").touch()
    rewind(store, 3)
    kept = files_in(store.checkpoint)
    assert sorted(path for path in kept if path.startswith("held/")) == [f"held/{n}.open.json" for n in range(4)]
    assert {path for path in kept if path.startswith("state/")} == {
        *(f"state/0/0/{version}.delta" for version in (1, 2, 3, 4)),
        "state/0/_metadata/metadata",
    }
    assert {path for path in kept if "/" not in path} == {"metadata", "generation", "schema.source.json"}
    assert not any(path.startswith("lookups") for path in kept)
    assert before != store.generation == store.recall("generation")


def test_a_source_without_a_log_of_files_keeps_what_it_has(store: Store) -> None:
    write_checkpoint(store.checkpoint, 3)
    for n in range(3):
        offsets = store.checkpoint / "offsets" / str(n)
        offsets.write_text(offsets.read_text().replace('{"logOffset"', '{"reservoirVersion"'))
    rewind(store, 0)
    assert {path for path in files_in(store.checkpoint) if path.startswith("sources/")} == {
        f"sources/0/{n}" for n in range(3)
    }


def test_a_goal_says_what_is_repeated(store: Store) -> None:
    write_checkpoint(store.checkpoint, 5, committed=4)
    batches = Batches.of_folder(store.checkpoint)
    assert to_batch(batches, 1).repeated == (2, 3, 4)
    assert to_batch(batches, 3).repeated == (4,), "it was begun, and may be in a target"
    assert to_start(batches).repeated == (0, 1, 2, 3, 4)
    assert to_time(batches, FIRST + timedelta(seconds=90)).last == 1
    assert to_time(batches, FIRST + timedelta(seconds=120)).last == 2, "planned at that very moment"
    assert to_time(batches, FIRST + timedelta(days=1)).last == 3
    for number in (4, 9):
        with pytest.raises(UsageError, match=f"cannot go back to batch {number}") as refused:
            to_batch(batches, number)
        assert "oldest batch that can be the last one is 0, planned at 2026-01-01 00:00:00 UTC" in str(refused.value)
    with pytest.raises(UsageError, match="--from-start always works"):
        to_time(batches, FIRST - timedelta(seconds=1))


def test_a_checkpoint_ends_only_where_spark_can_go_on(store: Store) -> None:
    write_checkpoint(store.checkpoint, 8, stateful=True)
    for path in ("offsets/0", "offsets/1", "commits/0", "commits/1", *(f"state/0/0/{n}.delta" for n in (1, 2, 3, 4))):
        (store.checkpoint / path).unlink()
    assert Batches.of_folder(store.checkpoint).ends == [], "nobody knows the state before version 5"
    (store.checkpoint / "state/0/0/5.snapshot").write_text("all")
    assert Batches.of_folder(store.checkpoint).ends == [4, 5, 6, 7]
    (store.checkpoint / "state/0/0/3.snapshot").write_text("all")
    (store.checkpoint / "state/0/0/4.delta").write_text("changes")
    assert Batches.of_folder(store.checkpoint).ends == [3, 4, 5, 6, 7], "batch 2 has lost the one before it"


def test_a_rewind_that_is_cut_off_leaves_the_old_checkpoint_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "orders"
    store = Store("orders", folder)
    write_checkpoint(store.checkpoint, 4)
    before, rename = store.generation, Path.rename
    for renames, batches in ((0, 4), (1, 2)):

        def rename_some(path: Path, target: Path, left: list[int] = [renames]) -> Path:  # noqa: B006 - it counts
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return rename(path, target)

        with monkeypatch.context() as patch:
            patch.setattr(Path, "rename", rename_some)
            with pytest.raises(KeyboardInterrupt):
                rewind(store, 1)
        store.close()
        store = Store("orders", folder)
        assert len(Batches.of_folder(store.checkpoint).planned) == batches
        assert (store.generation == before) == (batches == 4)
        assert {found.name for found in folder.iterdir()}.isdisjoint({"checkpoint.new", "checkpoint.old"})
    store.close()

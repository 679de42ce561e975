"""The files of a checkpoint, when a pipeline opens it."""

from contextlib import closing
from pathlib import Path

from ematix_flow.state.store import Store


def test_checksums_of_another_session_do_not_outlive_what_they_were_made_for(tmp_path: Path) -> None:
    with closing(Store("orders", tmp_path)) as store:
        folder = store.checkpoint / "state/0/1"
        folder.mkdir(parents=True)
        (folder / "1.delta").write_bytes(b"change")
        (folder / ".1.delta.crc").write_bytes(b"sum")
    Store("orders", tmp_path).close()
    assert [file.name for file in folder.iterdir()] == ["1.delta"]

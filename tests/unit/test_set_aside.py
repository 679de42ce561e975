"""Bad rows of a batch, in the order of their source."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ematix_flow.streams.envelope import BadRow
from ematix_flow.streams.set_aside import placed


class Lines:
    """A source that knows the line of a row only by its content, and stands for all sources."""

    exact_positions = False

    def named(self, name: str) -> "Lines":
        return self

    def lines(self, file: str, payloads: Collection[bytes]) -> Mapping[bytes, Sequence[int]]:
        return {b"x": [2], b"y": [9, 10]}


class Offsets(Lines):
    exact_positions = True


def test_rows_come_by_number_and_not_by_text() -> None:
    assert _places(Offsets(), ("t/1/10", b"a"), ("t/1/9", b"b"), ("t/0/11", b"c")) == ["t/0/11", "t/1/9", "t/1/10"]


def test_rows_of_a_file_come_line_by_line() -> None:
    assert _places(Lines(), ("f#0", b"y"), ("f#0", b"x"), ("f#0", b"y")) == ["f#2", "f#9", "f#10"]


def _places(sources: Any, *rows: tuple[str, bytes]) -> list[str]:
    bad = [BadRow(position, "s", "decode", "bad-json", None, None, payload) for position, payload in rows]
    return [place for _, place in placed(sources, 0, bad)]

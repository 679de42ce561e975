"""A state as bytes: every type comes back as it was, and what another release wrote is refused by name."""

from dataclasses import dataclass
from decimal import Decimal
from typing import ClassVar

import pyarrow as pa
import pytest

from ematix_flow.state.kernel import StateVersion, from_bytes, to_bytes
from tests.counting import Counting, counting


@dataclass(frozen=True)
class Newer(Counting):
    state_version: ClassVar[int] = 2


def test_values_survive() -> None:
    state = pa.table(
        {
            "n": [2**63 - 1, None],
            "money": pa.array([Decimal("12345678901234567890.12"), None], pa.decimal128(38, 2)),
            "raw": [b"\0\xff", b""],
            "nested": [{"a": [1, None]}, None],
        }
    )
    assert from_bytes(to_bytes(state, Counting()), Counting()).equals(state)


@pytest.mark.parametrize(
    ("blob", "written"),
    [(to_bytes(pa.table({"n": [1]}), Newer()), "counting version 1.2"), (b"", "something else")],
)
def test_a_state_of_another_version_is_refused(blob: bytes, written: str) -> None:
    with pytest.raises(StateVersion) as refused:
        from_bytes(blob, Counting())

    assert refused.value.code == "state-version"
    assert (refused.value.written, refused.value.expected) == (written, "counting version 1.1")
    assert "flow rewind NAME --from-start" in str(refused.value)
    # What arrives from a worker is text among other text.
    found = StateVersion.found_in(RuntimeError(f"Traceback ...\nStateVersion: {refused.value}\n more"))
    assert str(found) == str(refused.value)


def test_what_must_not_change_is_described() -> None:
    described = counting().describe()

    assert described["operator"] == "counting, state version 1.1"
    assert described["window"] == "1 minute"
    assert counting(late="dlq", lateness_ms=5).describe() == described
    assert counting(time="other").describe() != described

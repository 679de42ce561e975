"""The support matrix says what the suite found."""

import pytest

from tests.contract.backends import BACKENDS, Backend
from tests.contract.matrix import PAGE, cases, page


def test_the_support_matrix_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tests.contract.matrix`"


@pytest.mark.parametrize("kind", BACKENDS, ids=lambda kind: kind.name)
def test_a_declared_difference_is_one_of_a_case(kind: type[Backend]) -> None:
    assert {*kind.never, *kind.not_yet} <= set(cases())
    assert not kind.never.keys() & kind.not_yet.keys()

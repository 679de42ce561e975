"""When a transaction of the source has come whole, as far as one batch after another tells."""

from ematix_flow.cdc.transactions import Transaction


def after(*batches: Transaction) -> Transaction:
    known = batches[0]
    for one in batches[1:]:
        known = known.then(one)
    return known


def test_a_transaction_is_open_until_its_end_and_all_changes_have_come() -> None:
    begun = Transaction("1", begun=True, first=3, seen=2)
    assert begun.is_open
    ended = after(begun, Transaction("1", count=3, first=4, seen=2))
    assert ended.is_open
    assert (ended.begun, ended.count, ended.first) == (True, 3, 3)
    assert not after(ended, Transaction("1", first=5, seen=3)).is_open


def test_the_end_may_come_before_the_changes() -> None:
    both = Transaction("1", begun=True, count=1, first=3)
    assert both.is_open
    assert not after(both, Transaction("1", first=4, seen=1)).is_open


def test_nothing_is_waited_for_where_the_beginning_is_not_known() -> None:
    changes = Transaction("1", first=3, seen=1)
    assert changes.is_open
    half = after(changes, Transaction("1", count=5, first=4, seen=1))
    assert half.is_half
    assert not half.is_open
    assert not after(half, Transaction("1", first=5, seen=1)).is_open


def test_words() -> None:
    assert str(Transaction("7:8", seen=2)) == "7:8: 2 changes of an unknown number"
    assert str(Transaction("7:8", count=1_000, seen=2)) == "7:8: 2 changes of 1,000"

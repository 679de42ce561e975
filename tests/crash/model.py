"""The events of the crash tests, and the rows that must come of them, said as plainly as possible."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.contract.history import History

MINUTE = timedelta(minutes=1)

Row = tuple[Any, ...]


def event(key: int, value: str | None, at: str) -> dict[str, Any]:
    return {"id": key, "v": value, "shop": f"s{key % 3}", "amount": key / 2, "at": f"2026-01-01T00:{at}Z"}


# New keys, changed ones, two versions of a key in one batch, and an older event that is late for a window.
BATCHES = (
    [event(i, "a", "00:10") for i in range(6)],
    [*(event(i, "b", "01:20") for i in range(3, 8)), event(7, "c", "01:21"), event(0, None, "01:20")],
    [event(4, "old", "00:15"), event(8, "d", "03:30"), event(7, "e", "01:30")],
    [event(9, "f", "05:00"), event(4, "g", "04:50")],
)


def in_table(operator: str, mode: str) -> list[Row]:
    """`id, v`, for scd2 with the times of each version; or what `in_files` says of windows, which come once each."""
    if operator == "stateful":
        return in_files(operator)
    if mode == "append":
        return _pairs(*BATCHES)
    if mode == "truncate":
        return _pairs(BATCHES[-1])
    if mode == "merge":
        in_order = [sorted(batch, key=_time) for batch in BATCHES]
        return list(dict(_pairs(*in_order)).items())
    history = History()
    for batch in BATCHES:
        history.take([(one["id"], one["v"], _time(one)) for one in batch])
    return history.rows()


def in_files(operator: str) -> list[Row]:
    """Whatever the mode, files take every row: `id, v`, or `window_start, window_end, shop, orders, amount`."""
    return _windows() if operator == "stateful" else _pairs(*BATCHES)


def _pairs(*batches: list[dict[str, Any]]) -> list[Row]:
    return [(one["id"], one["v"]) for batch in batches for one in batch]


def _windows() -> list[Row]:
    """Every minute and shop; an event is late if one before its batch came after its minute."""
    amounts: dict[tuple[datetime, str], list[float]] = defaultdict(list)
    watermark = datetime.min.replace(tzinfo=UTC)
    for batch in BATCHES:
        for one in batch:
            start = _time(one).replace(second=0)
            if start + MINUTE > watermark:
                amounts[start, one["shop"]].append(one["amount"])
        watermark = max(watermark, *map(_time, batch))
    return [(start, start + MINUTE, shop, len(paid), sum(paid)) for (start, shop), paid in amounts.items()]


def _time(one: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(one["at"])

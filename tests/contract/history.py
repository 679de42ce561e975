"""What scd2 means, said as plainly as possible: one event after the other, over lists."""

from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from tests.contract.feeding import at


@dataclass(frozen=True)
class Version:
    name: Any
    start: int
    end: int | None


class History:
    def __init__(self) -> None:
        self._versions: dict[Any, list[Version]] = defaultdict(list)

    def take(self, events: list[tuple[Any, Any, int]]) -> None:
        """One batch of (key, name, hour), in the order in which they came: for one hour, the last counts."""
        last = {(key, hour): name for key, name, hour in events}
        for (key, hour), name in sorted(last.items(), key=lambda item: item[0][1]):
            self._versions[key] = _with(self._versions[key], name, hour)

    def rows(self) -> list[tuple[Any, Any, datetime, datetime | None, bool]]:
        return [
            (key, v.name, at(v.start), None if v.end is None else at(v.end), v.end is None)
            for key, versions in self._versions.items()
            for v in versions
        ]


def _with(versions: list[Version], name: Any, hour: int) -> list[Version]:
    for i, version in enumerate(versions):
        if version.start == hour:
            return [*versions[:i], replace(version, name=name), *versions[i + 1 :]]
    before = [version for version in versions if version.start < hour]
    after = versions[len(before) :]
    if not before:
        return [Version(name, hour, after[0].start if after else None), *after]
    if before[-1].name == name:
        return versions
    return [*before[:-1], replace(before[-1], end=hour), Version(name, hour, before[-1].end), *after]

"""What goes wrong while windows are computed, in a form that survives the way from a worker to the driver."""

from __future__ import annotations

import json

from ematix_flow.errors import FlowError

_MARK = "window-failed: "


class WindowFailed(FlowError):
    """An aggregate without an answer: a total that does not fit, a limit passed, a user's class that raised."""

    code = "window-failed"

    def __init__(self, found: str, *, next_step: str = "", arrived: bool = False) -> None:
        self.arrived = arrived
        """Whether it is in the driver, raised there or read from a worker's error, so that it is spoken plainly."""
        super().__init__(found, next_step=next_step)

    def __str__(self) -> str:
        return super().__str__() if self.arrived else _MARK + json.dumps([self.found, self.next_step])

    @classmethod
    def found_in(cls, error: BaseException) -> WindowFailed | None:
        """From what ended a query, because a worker's errors arrive as text; None if it was something else."""
        _, mark, facts = str(error).partition(_MARK)
        if not mark:
            return None
        (found, next_step), _ = json.JSONDecoder().raw_decode(facts)
        return cls(found, next_step=next_step, arrived=True)

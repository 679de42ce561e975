"""One process per pipeline, wherever it runs: a lease in the vault, a heartbeat, and a token that only one can have."""

from __future__ import annotations

import logging
import threading
import time

from ematix_flow.errors import FlowError
from ematix_flow.state.holder import Holder
from ematix_flow.state.lock import PipelineBusy
from ematix_flow.state.vault import Leased, LeaseLost, Vault

EXPIRES_SECONDS = 15.0
"""Without a heartbeat for so long, a holder has lost its lease to whoever asks for it."""
BEAT_SECONDS = 3.0
_POLL_SECONDS = 0.2

_log = logging.getLogger(__name__)


class Lease:
    """Held from here until `release`. A thread tells the vault that this process is alive."""

    def __init__(self, pipeline: str, vault: Vault) -> None:
        self._pipeline, self._vault = pipeline, vault
        self.token = _taken(pipeline, vault)
        self._over = threading.Event()
        self._beating = threading.Thread(target=self._beat, name=f"lease of {pipeline}", daemon=True)
        self._beating.start()

    def check(self) -> None:
        """Raise `LeaseLost` if another process has taken over. Asks the vault itself: a process that was paused knows
        nothing of what happened meanwhile."""
        if not self._vault.mine(self.token):
            raise LeaseLost(self._pipeline, self._vault.lease())

    def release(self) -> None:
        self._over.set()
        self._beating.join()
        try:
            self._vault.leave(self.token)
        except FlowError as error:
            # It expires by itself.
            _log.warning("lease not given back", extra={"pipeline": self._pipeline, "reason": error.found})

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            try:
                if not self._vault.beat(self.token):
                    _log.warning("lease lost", extra={"pipeline": self._pipeline})
                    return
            except FlowError as error:
                _log.warning("no heartbeat", extra={"pipeline": self._pipeline, "reason": error.found})


def _taken(pipeline: str, vault: Vault) -> int:
    """At once if nobody has the lease or its holder is dead; otherwise the holder gets time to show that it lives."""
    me = Holder.here()
    seen = vault.lease()
    expires = _expires(seen)
    while True:
        if seen is None or seen.holder.is_dead or time.monotonic() > expires:
            token = vault.take(me, seen)
            if token is not None:
                return token
        time.sleep(_POLL_SECONDS)
        now = vault.lease()
        if seen is not None and now is not None and (now.token, now.beat) != (seen.token, seen.beat):
            raise _busy(pipeline, now)
        if now is None or seen is None:
            seen, expires = now, _expires(now)


def _expires(leased: Leased | None) -> float:
    return time.monotonic() + EXPIRES_SECONDS - (leased.silent if leased else 0)


def _busy(pipeline: str, leased: Leased) -> PipelineBusy:
    return PipelineBusy(
        f"pipeline {pipeline!r} is already running in {leased.holder}",
        next_step="stop that process first; if its machine is gone, this one takes over "
        f"{EXPIRES_SECONDS:.0f} seconds after its last sign of life",
    )

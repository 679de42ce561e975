"""A daemon in two processes: a small parent that outlives crashes, and a child that runs the pipeline.

They share a socket, the lifeline. The child tells over it why it failed; when it closes, the parent is dead, and the
child ends itself at once, so that a new daemon can begin. Spark's Java process ends with the child that started it.
"""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from ematix_flow.errors import FlowError
from ematix_flow.ops.logs import log_file
from ematix_flow.ops.output import counted

_log = logging.getLogger(__name__)

TRY_AGAIN = 75
"""The child's exit code for an error that may pass (EX_TEMPFAIL); the parent never ends with it."""
_DONE, _FAILED, _REFUSED = 0, 1, 2
_WORDS_BYTES = 4096
_POLL_SECONDS = 0.05


class PipelineDied(FlowError):
    """The process that ran the pipeline ended without a word."""

    code = "pipeline-died"


class GaveUp(FlowError):
    """The pipeline was restarted as often as `--max-restarts` allows."""

    code = "gave-up"


@dataclass(frozen=True)
class Restarts:
    """Whether, how soon and how often a failed pipeline is started again."""

    on_error: bool = False
    initial_backoff: float = 1.0
    max_backoff: float = 60.0
    limit: int | None = None
    reset_after: float = 60.0
    """A child that lasted so many seconds was well; what fails then is counted from one again."""

    def delay(self, attempt: int) -> float:
        """Twice as long each time, and less by chance, so that daemons that fell together do not rise together."""
        # Beyond some power every limit is reached, and a float is not endless.
        longest = min(self.max_backoff, self.initial_backoff * 2.0 ** min(attempt - 1, 64))
        return longest * random.uniform(0.5, 1)  # noqa: S311 - no secret depends on it


@dataclass(frozen=True)
class Ending:
    """How a child ended: its exit code, negative for a signal, and what it told."""

    code: int
    words: str
    lasted: float

    @property
    def reason(self) -> str:
        if self.words:
            return self.words
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit code {self.code}"


def supervise(pipeline: str, command: Sequence[str], restarts: Restarts) -> int:
    """Run `command --lifeline FD --restarts N` until it ends for good; returns the exit code.

    SIGTERM and SIGINT are passed on, once, as SIGTERM; the child then finishes its batch.
    """
    attempt = total = 0
    with _stopping() as stop:
        while True:
            ending = _run(command, total, stop)
            # Killed by the very signal that was passed on: it was still loading, and nothing had begun.
            if ending.code in {_DONE, _FAILED, _REFUSED} or (stop.asked and ending.code == -signal.SIGTERM):
                return max(ending.code, _DONE)
            if stop.asked or not restarts.on_error:
                raise PipelineDied(
                    f"the process of pipeline {pipeline!r} ended: {ending.reason}",
                    next_step=f"what it did last is in {log_file()}; --restart-on-error starts it again by itself",
                )
            attempt = 1 if ending.lasted > restarts.reset_after else attempt + 1
            if restarts.limit is not None and attempt > restarts.limit:
                raise GaveUp(
                    f"pipeline {pipeline!r} failed again after {counted(restarts.limit, 'restart')}: {ending.reason}",
                    next_step=f"remove the cause and start it again; what it did is in {log_file()}",
                )
            delay = restarts.delay(attempt)
            facts = {"reason": ending.reason, "attempt": attempt, "delay_seconds": round(delay, 3)}
            _log.warning("restarting", extra={"pipeline": pipeline, **facts})
            if not stop.pause(delay):
                return _DONE
            total += 1


def attach(descriptor: int) -> socket.socket:
    """The child's end, held until it dies: this process is killed when the parent is gone, whatever ended it."""
    line = socket.socket(fileno=descriptor)
    line.set_inheritable(False)

    def wait_for_the_end() -> None:
        if not line.recv(1):
            # At once, like any crash: the next start repeats the batch, and nothing is lost or doubled.
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait_for_the_end, name="lifeline", daemon=True).start()
    return line


def may_pass(error: Exception) -> bool:
    """Whether trying again is sensible: the error says so, or nobody foresaw it."""
    return error.transient if isinstance(error, FlowError) else True


def tell(line: socket.socket, error: FlowError) -> None:
    words = f"{error.code}: {error.found.splitlines()[0]}"
    line.sendall(words.encode()[:_WORDS_BYTES])


class _Stop:
    """What SIGTERM and SIGINT do in the parent."""

    def __init__(self) -> None:
        self.asked = False
        self.child: subprocess.Popen[bytes] | None = None

    def __call__(self, *_: object) -> None:
        if not self.asked and self.child is not None:
            self.child.terminate()
        self.asked = True

    def pause(self, seconds: float) -> bool:
        """False if it was asked to stop meanwhile. No lock here: the signal may arrive while it is held."""
        until = time.monotonic() + seconds
        while not self.asked and time.monotonic() < until:
            time.sleep(min(_POLL_SECONDS, seconds))
        return not self.asked


@contextmanager
def _stopping() -> Iterator[_Stop]:
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(command: Sequence[str], restarts: int, stop: _Stop) -> Ending:
    began = time.monotonic()
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            child = subprocess.Popen(
                [*command, "--lifeline", str(theirs.fileno()), "--restarts", str(restarts)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                # Ctrl-C reaches a whole process group; the child shall hear it from its parent alone.
                process_group=0,
            )
        stop.child = child
        if stop.asked:  # between its start and the line above
            child.terminate()
        code = child.wait()
        stop.child = None
        ours.setblocking(False)
        try:
            words = ours.recv(_WORDS_BYTES).decode(errors="replace")
        except OSError:  # it told nothing
            words = ""
    return Ending(code, words, time.monotonic() - began)

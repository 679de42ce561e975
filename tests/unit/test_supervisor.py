"""The supervisor with tiny programs in the place of a pipeline: what ends it, what it restarts, how it stops."""

import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.ops.cli import main
from ematix_flow.ops.supervisor import TRY_AGAIN, GaveUp, PipelineDied, Restarts, attach, may_pass, supervise
from ematix_flow.streams.failures import BatchFailed
from tests.orders import Orders

# Each program finds its end of the lifeline and the number of restarts where `flow consume` does.
CHILD = "import os, signal, socket, sys; line, restarts = int(sys.argv[2]), int(sys.argv[4])\n"
AT_ONCE = Restarts(on_error=True, initial_backoff=0, max_backoff=0)


def supervised(program: str, restarts: Restarts = AT_ONCE) -> int:
    return supervise("orders", [sys.executable, "-I", "-S", "-c", CHILD + program], restarts)


class Restarted(logging.Handler):
    """The restarts that were logged."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record)


@pytest.fixture
def restarted() -> Iterator[Restarted]:
    logger, handler = logging.getLogger("ematix_flow.ops.supervisor"), Restarted()
    logger.addHandler(handler)
    yield handler
    logger.removeHandler(handler)


def test_a_child_that_is_done_or_failed_for_good_ends_it_with_its_exit_code(restarted: Restarted) -> None:
    assert [supervised(f"sys.exit({code})") for code in (0, 1, 2)] == [0, 1, 2]
    assert restarted.seen == []


def test_what_may_pass_is_tried_again_and_each_restart_says_why(restarted: Restarted) -> None:
    program = f"""
if restarts == 0:
    socket.socket(fileno=line).send(b"batch-failed: the disk is full")
    sys.exit({TRY_AGAIN})
if restarts == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if restarts == 2:
    sys.exit(134)
"""
    assert supervised(program) == 0
    facts = [vars(record) for record in restarted.seen]
    assert [(fact["reason"], fact["attempt"]) for fact in facts] == [
        ("batch-failed: the disk is full", 1),
        ("killed by signal 9", 2),
        ("exit code 134", 3),
    ]
    assert {(fact["msg"], fact["pipeline"], fact["delay_seconds"]) for fact in facts} == {("restarting", "orders", 0)}


def test_without_restart_on_error_a_crash_ends_it_in_words() -> None:
    with pytest.raises(PipelineDied, match="the process of pipeline 'orders' ended: killed by signal 9") as died:
        supervised("os.kill(os.getpid(), signal.SIGKILL)", Restarts())
    assert died.value.exit_code == 1
    assert "--restart-on-error" in died.value.next_step


def test_it_gives_up_after_so_many_restarts_unless_the_child_was_well_in_between(restarted: Restarted) -> None:
    with pytest.raises(GaveUp, match="'orders' failed again after 1 restart: exit code 75"):
        supervised(f"sys.exit({TRY_AGAIN})", Restarts(True, 0, 0, limit=1))
    assert [vars(record)["attempt"] for record in restarted.seen] == [1]
    restarted.seen.clear()
    assert supervised(f"sys.exit({TRY_AGAIN} if restarts < 3 else 0)", Restarts(True, 0, 0, 1, reset_after=0)) == 0
    assert [vars(record)["attempt"] for record in restarted.seen] == [1, 1, 1]


def test_the_wait_doubles_up_to_its_limit_and_is_never_quite_the_same() -> None:
    restarts = Restarts(initial_backoff=1, max_backoff=60)
    for attempt, longest in ((1, 1), (2, 2), (4, 8), (7, 60), (5_000, 60)):
        delays = {restarts.delay(attempt) for _ in range(50)}
        assert len(delays) > 1
        assert longest / 2 <= min(delays) <= max(delays) <= longest


@pytest.mark.parametrize("asked", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_lets_the_child_finish(asked: signal.Signals) -> None:
    finishing = """
signal.signal(signal.SIGTERM, lambda *_: sys.exit({code}))
os.kill(os.getppid(), {asked:d})
signal.pause()
"""
    assert supervised(finishing.format(asked=asked, code=0)) == 0
    assert supervised(finishing.format(asked=asked, code=1)) == 1
    with pytest.raises(PipelineDied):
        supervised(finishing.format(asked=asked, code=TRY_AGAIN))
    # Still loading: nothing was begun, so there is nothing to finish.
    assert supervised(f"os.kill(os.getppid(), {asked:d}); signal.pause()") == 0
    assert signal.getsignal(asked) in (signal.SIG_DFL, signal.default_int_handler)


def test_asked_to_stop_while_it_waits_it_ends_at_once(restarted: Restarted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(restarted, "emit", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    assert supervised(f"sys.exit({TRY_AGAIN})", Restarts(True, initial_backoff=3600, max_backoff=3600)) == 0


def test_a_child_dies_with_its_parent() -> None:
    ours, theirs = socket.socketpair()
    program = f"import signal; from {attach.__module__} import attach; attach({theirs.fileno()}); print(flush=True)"
    words = [sys.executable, "-c", f"{program}; signal.pause()"]
    with theirs:
        child = subprocess.Popen(words, pass_fds=(theirs.fileno(),), stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child.stdout, ours:
        assert child.stdout.readline() == b"\n"
        assert child.poll() is None
    assert child.wait(timeout=30) == -signal.SIGKILL


def test_errors_that_say_so_and_errors_nobody_foresaw_may_pass() -> None:
    assert may_pass(BatchFailed("the network is down"))
    assert may_pass(ConnectionResetError())
    assert not may_pass(UsageError("no such file"))
    assert not may_pass(FlowError("a bad row"))


def test_what_is_wrong_at_once_is_told_before_anything_starts(
    orders: Orders, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["consume", "nothing.toml", "--restart-on-error"]) == 2
    assert "nothing.toml" in capsys.readouterr().err
    (orders.folder / "orders.toml").write_text(orders.toml())
    assert main(["consume", str(orders.folder / "orders.toml"), "--max-restarts", "3"]) == 2
    assert "add --restart-on-error" in capsys.readouterr().err

"""`examples/fraud` as a newcomer runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.fraud.demo import ORDERS
from examples.fraud.orders import expected, orders

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_it_finds_every_alert_once_in_spite_of_a_kill() -> None:
    command = [sys.executable, "-m", "examples.fraud.demo"]
    done = subprocess.run(command, cwd=ROOT, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ended by SIGKILL: the transaction is committed, the batch is not" in done.stdout
    alerts = len(expected(orders(ORDERS)))
    assert f"{alerts:,} alerts, as many as there should be, each once and with the right numbers" in done.stdout

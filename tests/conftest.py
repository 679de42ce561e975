"""Keeps every test away from the state and the settings of whoever runs it."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMATIX_FLOW_HOME", str(tmp_path / ".ematix-flow"))

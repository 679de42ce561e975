"""Runs the pipeline on stdin in a process that a test may kill: `python -m tests.crash.victim stateful|stateless`."""

import sys

from ematix_flow.result import RunResult
from ematix_flow.streams.run import run_spec
from ematix_flow.toml import load_toml
from tests.counting import counting


def run(declaration: str, operator: str) -> RunResult:
    (spec,) = load_toml(None, declaration)
    return run_spec(spec, bounded=True, operator=counting(late="dlq") if operator == "stateful" else None)


if __name__ == "__main__":
    run(sys.stdin.read(), sys.argv[1])

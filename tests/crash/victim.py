"""Runs the pipeline on stdin in a process that a test may kill: `python -m tests.crash.victim`."""

import sys

from ematix_flow import run_pipeline

if __name__ == "__main__":
    run_pipeline(config_str=sys.stdin.read(), bounded=True)

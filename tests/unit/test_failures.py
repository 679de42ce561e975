"""What is told of an error that Spark raised."""

import pytest

from ematix_flow.streams.failures import spark_words

TRACEBACK = """Traceback (most recent call last):
  File "shop.py", line 3, in total
    raise ValueError(f"no such day: {day}")
ValueError: no such day: 31 February

JVM stacktrace:
	at org.apache.spark.api.python.BasePythonRunner
"""


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "[DIVIDE_BY_ZERO] Division by zero.\n== SQL": "[DIVIDE_BY_ZERO] Division by zero.",
        f"An exception was thrown from the Python worker:\n{TRACEBACK}": "ValueError: no such day: 31 February",
        f"[PYTHON_EXCEPTION] From the worker: {TRACEBACK}": "ValueError: no such day: 31 February",
        "Job aborted\n  by hand": "Exception: Job aborted",
        "": "Exception: no message",
    }.items(),
)
def test_the_words_of_an_error_are_its_reason(text: str, told: str) -> None:
    assert spark_words(Exception(text))[1] == told

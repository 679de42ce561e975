"""Whether Spark's Java process is still there; when it is not, every other error is only an echo of that."""

from __future__ import annotations

import subprocess

from ematix_flow.errors import FlowError
from ematix_flow.state.home import logs

# The sockets of a process that was killed close a little before it is gone.
_GONE_WITHIN_SECONDS = 1


class JavaDied(FlowError):
    """Spark's Java process ended while the pipeline ran."""

    code = "java-died"
    transient = True


def java_died() -> JavaDied | None:
    """What to tell, if the Java process that this one started has ended."""
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] | None = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001
    if process is None:
        return None
    try:
        code = process.wait(_GONE_WITHIN_SECONDS)
    except subprocess.TimeoutExpired:
        return None
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return JavaDied(
        f"Spark's Java process {how}",
        next_step=f"its last words are in {logs() / 'spark.log'}; a kill that nobody sent means that memory ran out: "
        "lower spark.driver.memory in [spark] conf, or give the machine more",
    )

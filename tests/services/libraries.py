"""Java libraries of programs that tests and benchmarks start, fetched through Spark's own Ivy."""

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

_FETCH = """
import sys
from pyspark.sql import SparkSession
folder, *coordinates = sys.argv[1:]
settings = {
    "spark.jars.ivy": folder, "spark.driver.defaultJavaOptions": f'"-Duser.home={folder}"', "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.warehouse.dir": f"{folder}/warehouse",
}
builder = SparkSession.builder.master("local[1]")
for key, value in settings.items():
    builder = builder.config(key, value)
for coordinate in coordinates:
    builder.getOrCreate().sql(f"ADD JAR ivy://{coordinate}?transitive=true")
"""


def libraries(name: str, *coordinates: str) -> Path:
    """A folder of these and of what they need, fetched once per machine, which takes a minute. Ivy leaves the library
    of Scala out, because Spark has it."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ematix-flow-tests"
    folder = caches / name
    if not folder.exists():
        caches.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=caches) as draft:
            plain = {k: v for k, v in os.environ.items() if k not in {"SPARK_REMOTE", "PYSPARK_SUBMIT_ARGS"}}
            fetched = subprocess.run(
                [sys.executable, "-c", _FETCH, draft, *coordinates], env=plain, capture_output=True, check=False
            )
            assert fetched.returncode == 0, f"{coordinates[0]} could not be fetched:\n{fetched.stderr.decode()}"
            # Another process may have been quicker.
            with suppress(OSError):
                Path(draft, "jars").rename(folder)
    return folder


def java(program: str = "java") -> str:
    home = os.environ.get("JAVA_HOME")
    return f"{home}/bin/{program}" if home else program

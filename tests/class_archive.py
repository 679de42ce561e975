"""An archive of Spark's Java classes, as loaded: with it a Java process starts in about half the time.

python -m tests.class_archive    runs a pipeline, so that Java sees most of the classes
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyspark

OPTIONS = "SPARK_SUBMIT_OPTS"


def use_archive(folder: Path, *, make: bool) -> None:
    """Let every Java process from now on use the archive in this folder, if it is there or to be made."""
    java = shutil.which("java", path=Path(home, "bin") if (home := os.environ.get("JAVA_HOME")) else None)
    if java is None:
        return
    # Java refuses the archive of another Java or of other jars, and says so on the way.
    made_for = Path(java).resolve(), Path(pyspark.__file__).parent / "jars"
    archive = folder / f"spark-{'-'.join(f'{part.stat().st_mtime_ns:x}' for part in made_for)}.jsa"
    if make and not archive.exists():
        _make(archive)
    if archive.exists():
        os.environ[OPTIONS] += f" -XX:SharedArchiveFile={archive}"


def _make(archive: Path) -> None:
    for old in archive.parent.glob("*.jsa*"):
        old.unlink()
    draft = archive.with_suffix(".jsa.draft")
    options = f"{os.environ[OPTIONS]} -XX:ArchiveClassesAtExit={draft}"
    root = Path(__file__).parents[1]
    made = subprocess.run(
        [sys.executable, "-m", __name__],
        cwd=root,
        env=os.environ | {OPTIONS: options},
        capture_output=True,
        check=False,
    )
    # If a pipeline does not even run, the tests say it better.
    if made.returncode == 0:
        draft.rename(archive)


def _run_a_pipeline(folder: Path) -> None:
    from pyspark import SparkContext

    from tests.orders import Orders

    orders = Orders(folder)
    orders.numbered(range(3))
    orders.run(targets=("duckdb", "parquet"))

    context = SparkContext.getOrCreate()
    java = context._gateway.proc
    context.stop()
    # It ends with its standard input, and writes the archive as it ends.
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ["EMATIX_FLOW_HOME"] = folder
        _run_a_pipeline(Path(folder))

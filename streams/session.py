"""The Spark session: one JVM per process, its noise in a log file, settings that fit small batches."""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError
from ematix_flow.specs import SparkSettings
from ematix_flow.state.home import logs
from ematix_flow.streams.jars import jars

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

# Set when the JVM starts.
_STATIC = {
    "spark.app.name": "ematix-flow",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.memory": "2g",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.daemon.module": "ematix_flow.streams.workers",
    "spark.sql.streaming.numRecentProgressUpdates": "20",
    # Hadoop writes a second file with checksums beside each on a local disk, and starts a process for each of the two
    # to set its rights: a batch has two notes of Spark's and a change of every part of the state.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # Otherwise every column that is named asks Java twice, to note the line of Python where it was.
    "spark.python.sql.dataFrameDebugging.enabled": "false",
}
# A driver that serves only this machine should be reachable only from it.
_STATIC_LOCAL = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}

# Set for every run, in a session of its own, so that a caller's session keeps its settings.
_PER_RUN = {
    "spark.sql.session.timeZone": "UTC",
    # Names that differ only in case are two columns in JSON and in most databases' quoted form, but not in SQL text.
    "spark.sql.caseSensitive": "false",
    # INT96, Spark's default, is read by DuckDB and others as another type.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # As numbers, of which the file source makes times; Spark has none that are as fine.
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    # With one minimum partition, files are cut at the same bytes on every machine, so a repeated batch has the same
    # rows in the same order; small batches are one task, and a task costs more than it saves below this size.
    "spark.sql.files.maxPartitionBytes": "32m",
    "spark.sql.files.minPartitionNum": "1",
    "spark.sql.files.ignoreMissingFiles": "false",
    # Where a lookup turns out to have no rows, Spark would not read the batch, and so not count it.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
    # Rows go to Python in batches of so many. With a limit of bytes as well, Spark would measure the batch after every
    # row, which takes twice as long as writing them: so rows are few enough for half a megabyte each.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "2000",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(2**31 - 1),
    # Spark describes every plan that it runs for a page that is not there.
    "spark.sql.ui.explainMode": "simple",
    # What Spark leaves out when it writes the options of a source into its log.
    "spark.sql.redaction.options.regex": "(?i)url|secret|password|token|jaas|keystore",
    # States of operators are few and large, and Spark looks at all of them in every batch. So RocksDB takes as long per
    # batch, writes as much, loads more slowly, and a snapshot of it is several files that belong together;
    # `bench.state_providers` compares the two.
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"
    ),
    # A snapshot is the whole state, and is kept elsewhere like every file of a checkpoint: it should be rare.
    "spark.sql.streaming.stateStore.minDeltasForSnapshot": "50",
}
WITH_STATE = {
    # Rows on their way to an operator pass through Python, which takes several times as long as only reading them: so
    # smaller pieces are worth a task of their own.
    "spark.sql.files.maxPartitionBytes": "8m",
    "spark.sql.files.openCostInBytes": "256k",
    # They have only the columns that an operator needs, so that more of them may go together.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "50000",
}
"""Also set for a pipeline that has a window or a join."""
WITH_PAYLOADS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "10000"}
"""Also set where payloads come to Python: to be read there, or because late rows are kept with theirs."""
WITH_RECORDS = {"spark.sql.execution.arrow.maxRecordsPerBatch": "5000"}
"""Also set for rows of topics without an operator: workers read many records at once, or send them."""
WITH_CHANGES = {
    # The envelopes of a batch are kept while it runs; making them smaller takes longer than anything it saves.
    "spark.sql.inMemoryColumnarStorage.compressed": "false",
}
"""Also set for a pipeline whose rows are changes."""
# Set when the JVM starts, if a pipeline of this process reads or writes Delta tables.
_DELTA_STATIC = {
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}
# Delta looks at a table's log with a Spark job of 50 tasks; the logs of most tables fit into two.
_DELTA_PER_RUN = {"spark.databricks.delta.snapshotPartitions": "2"}
# Marks a context whose Java process this one has started.
_OURS = "_ematix_flow_started"
# Settings that hold a list: what the user's `[spark] conf` names is added to ours.
_LISTS = ("spark.jars", "spark.sql.extensions")
# Rows go to Python value by value, and Arrow would look each time whether the memory that it has taken is its own.
_ARROW = "-Darrow.enable_unsafe_memory_access=true"
# What a batch leaves behind dies with it, and G1, Java's default, works beside the batches on the cores that they need.
# Java does not start with two collectors.
_COLLECTOR, _ANY_COLLECTOR = "-XX:+UseParallelGC", re.compile(r"-XX:\+Use\w+GC\b")
_OPTIONS = ("spark.driver.extraJavaOptions", "spark.driver.defaultJavaOptions")
_OPTIONS_OUTSIDE = ("SPARK_SUBMIT_OPTS", "JDK_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS")
# Renames within one disk need neither a copy nor an abort protocol.
_FILE_MANAGER = "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"


class JavaMissing(FlowError):
    """Spark could not start a Java virtual machine."""

    code = "java-missing"
    exit_code = 2


class DeltaMissing(FlowError):
    """A pipeline with Delta tables met a Spark session that was started without Delta."""

    code = "delta-missing"
    exit_code = 2

    def __init__(self) -> None:
        settings = {"spark.jars": ",".join(map(str, jars({"delta"}))), **_DELTA_STATIC}
        lines = "\n".join(f"  {key}={value}" for key, value in settings.items())
        super().__init__(
            "the Spark session was started without Delta, which cannot be added to it later",
            next_step="stop it and let the pipeline start its own, or start it with\n" + lines,
        )


class KafkaMissing(FlowError):
    """A pipeline with Kafka topics met a Spark session that was started without Kafka's libraries."""

    code = "kafka-missing"
    exit_code = 2

    def __init__(self, groups: Collection[str]) -> None:
        super().__init__(
            "the Spark session was started without Kafka's libraries, which cannot be added to it later",
            next_step="stop it and let the pipeline start its own, or start it with\n"
            f"  spark.jars={','.join(map(str, jars(groups)))}",
        )


def session_for(
    settings: SparkSettings,
    *,
    jar_groups: Collection[str] = (),
    spark: SparkSession | None = None,
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session for one run: in the caller's JVM, in the one this process already has, or in a new one."""
    from pyspark.sql import SparkSession

    for echo in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        # They print every error that Spark raises, with its Java stack, although it is raised as well.
        logging.getLogger(echo).setLevel(logging.CRITICAL + 1)
    base = spark or SparkSession.getActiveSession() or _started() or _start(settings, jar_groups)
    lacks = any(not _ASKED[group](base) for group in jar_groups if group in _ASKED)
    if lacks and spark is None and _is_ours_and_idle(base):
        base = _started_anew(settings, {*jar_groups, *(group for group in _ASKED if _ASKED[group](base))})
    if "delta" in jar_groups and not _has_delta(base):
        raise DeltaMissing
    if any(group in jar_groups and not _ASKED[group](base) for group in ("kafka", "msk")):
        raise KafkaMissing(jar_groups)
    session = base.newSession()
    cores = session.sparkContext.defaultParallelism
    per_run = _PER_RUN | {
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.streaming.checkpointFileManagerClass": _FILE_MANAGER,
        **(_DELTA_PER_RUN if "delta" in jar_groups else {}),
    }
    for key, value in (per_run | dict(conf or {}) | _runtime_part(settings.conf, session)).items():
        session.conf.set(key, value)
    return session


def _is_ours_and_idle(session: SparkSession) -> bool:
    """Whether this process started its JVM, and no pipeline runs in it."""
    ours = getattr(session.sparkContext, _OURS, False)
    return bool(ours and session._jsparkSession.sharedState().activeStreamingQueries().isEmpty())  # noqa: SLF001


def _started_anew(settings: SparkSettings, jar_groups: Collection[str]) -> SparkSession:
    """Java takes no libraries while it runs, so that a script whose second pipeline needs more gets another one."""
    from pyspark import SparkContext

    context, gateway = SparkContext._active_spark_context, SparkContext._gateway  # noqa: SLF001
    assert context is not None
    assert gateway is not None
    context.stop()
    gateway.shutdown()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001
    return _start(settings, jar_groups)


def _has_delta(session: SparkSession) -> bool:
    return all(value in (session.conf.get(key, "") or "") for key, value in _DELTA_STATIC.items())


def _has_class(name: str, session: SparkSession) -> bool:
    from py4j.protocol import Py4JJavaError

    loader = session.sparkContext._jvm.java.lang.Thread.currentThread().getContextClassLoader()  # type: ignore[union-attr]  # noqa: SLF001
    try:
        loader.loadClass(name)
    except Py4JJavaError:
        return False
    return True


_ASKED: dict[str, Callable[[SparkSession], bool]] = {
    "delta": _has_delta,
    "kafka": partial(_has_class, "org.apache.spark.sql.kafka010.KafkaSourceProvider"),
    "msk": partial(_has_class, "software.amazon.msk.auth.iam.IAMLoginModule"),
}
"""Groups of libraries -> whether a session has them."""


def _started() -> SparkSession | None:
    """The session of a JVM that this process started before."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context  # noqa: SLF001
    return SparkSession(context) if context is not None else None


def _start(settings: SparkSettings, jar_groups: Collection[str]) -> SparkSession:
    from pyspark import SparkConf
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    # Otherwise workers take the first python3 of the PATH, which has none of our packages.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    master = settings.master or "local[*]"
    log = logs() / "spark.log"
    conf = SparkConf(loadDefaults=False)
    static = _STATIC | (_STATIC_LOCAL if master.startswith("local") else {}) | _for_java(log, settings.conf)
    # Delta makes this folder, and would make it wherever the user stands.
    static["spark.sql.warehouse.dir"] = str(log.parent.parent / "warehouse")
    if jar_groups:
        static["spark.jars"] = ",".join(map(str, jars(jar_groups)))
    if "delta" in jar_groups:
        static |= _DELTA_STATIC | _DELTA_PER_RUN
    lists = {key: f"{static[key]},{settings.conf[key]}" for key in _LISTS if key in static and key in settings.conf}
    for key, value in ({"spark.master": master} | static | dict(settings.conf) | lists).items():
        conf.set(key, value)
    try:
        with log.open("ab") as noise:
            gateway = launch_gateway(conf, {"stdout": noise, "stderr": noise})  # type: ignore[no-untyped-call]
        context = _context(conf, gateway)
        setattr(context, _OURS, True)
        return SparkSession(context)
    except (PySparkException, OSError) as error:
        raise JavaMissing(
            f"Spark's Java process did not start ({str(error).splitlines()[0]})",
            next_step=f"install Java 17 or set JAVA_HOME, then `flow doctor`; the details are in {log}",
        ) from error


def _context(conf: SparkConf, gateway: JavaGateway) -> SparkContext:
    """A context that leaves Ctrl-C to the caller; Spark's own handler would cut a batch off in the middle."""
    from pyspark import SparkContext

    before = signal.getsignal(signal.SIGINT)
    try:
        return SparkContext(conf=conf, gateway=gateway)
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, before)


def _for_java(log: Path, conf: Mapping[str, str]) -> dict[str, str]:
    given = [*(conf.get(key, "") for key in _OPTIONS), *(os.environ.get(name, "") for name in _OPTIONS_OUTSIDE)]
    collector = [] if any(map(_ANY_COLLECTOR.search, given)) else [_COLLECTOR]
    logging = f"-Dlog4j2.configurationFile=file:{files('ematix_flow.streams') / 'log4j2.properties'} -Dflow.log={log}"
    return {"spark.driver.defaultJavaOptions": " ".join([logging, _ARROW, *collector])}


def _runtime_part(conf: Mapping[str, str], session: SparkSession) -> dict[str, str]:
    """What of the user's `[spark] conf` can be set on a running JVM."""
    return {
        key: value for key, value in conf.items() if key.startswith("spark.sql.") and session.conf.isModifiable(key)
    }

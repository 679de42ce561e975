"""`make demo`: a declared pipeline over generated order events, from files to a table, and everything it has to say.

`python -m examples.orders.demo [FOLDER]` does the same in another folder than artifacts/orders.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
from pathlib import Path

from ematix_flow.errors import FlowError, UsageError
from ematix_flow.result import RunResult
from ematix_flow.specs import PipelineSpec
from ematix_flow.streams.guarantee import guarantees
from ematix_flow.streams.run import run_spec
from ematix_flow.streams.runner import BatchReport
from ematix_flow.streams.session import session_for
from ematix_flow.toml import load_toml
from examples.orders import findings, text
from examples.orders.events import write_events

ROOT = Path(__file__).parents[2]
DECLARATION = Path(__file__).with_name("orders.toml")
DEFAULT_FOLDER = Path("artifacts/orders")

STEPS = {
    "plan": "Spark has fixed which files the batch has",
    "compute": "good and bad rows are told apart",
    "stage": "read, decode, transform, write where nobody reads",
    "save": "the plan of the batch is on the disk",
    "apply": "one DuckDB transaction: the rows and their fence",
    "divert": "bad rows become dead letters",
    "release": "the source may forget what is safe",
    "commit": "the batch is done",
}


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT_FOLDER
    try:
        show(folder)
    except FlowError as error:
        sys.exit(str(error))


def show(folder: Path) -> None:
    began = time.perf_counter()
    _fresh(folder)
    text.title("Order events become a table")
    text.paragraph(
        "Files of JSON lines are read as a stream, typed and priced by one SQL statement and added to a DuckDB "
        "table, each event once. That is declared in orders.toml; the rest is the product."
    )
    made = write_events(folder / "events")
    text.facts(
        {
            "events": f"{folder}/events, {made.events:,} in {made.files} files, a few late, a few malformed",
            "pipeline": f"{folder}/orders.toml",
            "table": f"{folder}/shop.duckdb, orders",
        }
    )
    # The folder is a whole project: from now on everything happens in it, as it would for `flow`.
    shown, before = folder, Path.cwd()
    os.environ["EMATIX_FLOW_HOME"] = str(folder.absolute() / ".ematix-flow")
    os.chdir(folder)
    try:
        spec = load_toml("orders.toml")[0]
        result, reports, starting = _run(spec)
        _say_results(result)
        _say_rejected(spec)
        _say_guarantee(spec)
        _say_times(reports, starting, result, time.perf_counter() - began)
    finally:
        os.chdir(before)
    _say_next(shown)


def _fresh(folder: Path) -> None:
    if folder.is_dir() and any(folder.iterdir()) and not (folder / "orders.toml").exists():
        raise UsageError(
            f"{folder} holds something else than an earlier demo", next_step="name a folder that does not exist"
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copy(DECLARATION, folder / "orders.toml")


def _run(spec: PipelineSpec) -> tuple[RunResult, list[BatchReport], float]:
    text.heading("The run")
    began = time.perf_counter()
    with text.waiting("starting Spark"):
        session = session_for(spec.spark)
    starting = time.perf_counter() - began
    reports: list[BatchReport] = []

    def report(batch: BatchReport) -> None:
        reports.append(batch)
        bad, seconds = sum(batch.bad.values()), sum(batch.seconds.values())
        counts = f"{batch.consumed:6,} events  {sum(batch.written.values()):6,} orders  {bad:3} rejected"
        text.line(f"batch {batch.number}  {counts}  {seconds:5.1f} s")

    result = run_spec(spec, bounded=True, spark=session, on_batch=report)
    return result, reports, starting


def _say_results(result: RunResult) -> None:
    rows = findings.by_country(Path("shop.duckdb"))
    total = findings.total(rows)
    rejected = sum(result.dlq_rows.values())
    text.heading("The result")
    text.line(f"{result.rows_consumed:,} events = {total.orders:,} orders in the table + {rejected} rejected.")
    text.line(f"{total.late} orders arrived more than an hour late; each counts on the day it was placed.")
    text.table(
        ["country", "orders", "revenue EUR", "per order", "late"],
        [
            [row.country, f"{row.orders:,}", f"{row.revenue:,.2f}", f"{row.revenue / row.orders:,.2f}", str(row.late)]
            for row in [*rows, total]
        ],
        total=True,
    )


def _say_rejected(spec: PipelineSpec) -> None:
    text.heading("What was rejected, and why")
    text.line("A bad row does not stop the others. Each is kept, byte for byte, as a dead letter:")
    text.table(
        ["reason", "rows", "for example", "in"],
        [[r.reason, str(r.rows), r.example, r.place] for r in findings.rejections(spec.name)],
        left=(0, 2, 3),
    )


def _say_guarantee(spec: PipelineSpec) -> None:
    text.heading("The guarantee")
    for promise in guarantees(spec):
        text.paragraph(f"{promise.target}: {promise.promise}, because {promise.reason}.", indent=2)


def _say_times(reports: list[BatchReport], starting: float, result: RunResult, whole: float) -> None:
    text.heading("Where the time went")
    by_step = {step: sum(report.seconds.get(step, 0.0) for report in reports) for step in STEPS}
    between = max(0.0, result.duration_seconds - sum(by_step.values()))
    rest = max(0.0, whole - starting - result.duration_seconds)
    rows = [
        ("", "start Spark", starting, "once per process"),
        *((str(i), step, by_step[step], STEPS[step]) for i, step in enumerate(STEPS, 1)),
        ("", "around them", between, f"Spark plans and closes {result.batches} batches, looks for more"),
        ("", "demo", rest, "make the events, ask DuckDB"),
    ]
    for number, name, seconds, words in rows:
        text.line(f"{number:1} {name:<12}{seconds:6.2f} s  {text.bar(seconds, whole, 20)}  {words}".rstrip())
    text.line(f"  {'in all':<12}{whole:6.2f} s   The first batch is slow: Spark loads and compiles itself in it.")


def _say_next(folder: Path) -> None:
    events = os.path.relpath(ROOT / "examples/orders/events.py", folder)
    text.heading("Next")
    text.commands(
        [
            (f". {os.path.relpath(ROOT)}/.venv/bin/activate && cd {folder}", ""),
            ("flow validate orders.toml", "what it promises, before anything runs"),
            ("flow run orders.toml --bounded", "again: nothing is read twice"),
            (f"python {events} events --seed 8", "another day of events"),
            ("flow run orders.toml --bounded", "only the new files"),
        ]
    )


if __name__ == "__main__":
    main()

"""The project that `flow init` writes: files become a DuckDB table, and two of their lines are set aside."""

from __future__ import annotations

from pathlib import Path

from ematix_flow.errors import UsageError

_PIPELINES = """\
# One pipeline per file, or several as [[pipelines]]. `flow schema` prints what may stand here.
pipeline_name = "orders"

[source]
kind = "object_store_local"
path = "data/orders"
format = "json_lines"
schema = "order_id long, customer string, item string, quantity int, price decimal(10,2), ordered_at timestamp"
event_time_column = "ordered_at"

[transform]
sql = \"\"\"
SELECT order_id, customer, item, quantity, quantity * price AS amount, ordered_at
FROM source
WHERE quantity > 0
\"\"\"
# A row that cannot be used is kept aside with its original text and the reason; "fail" stops, "drop" counts.
on_error = "dlq"

[target]
kind = "duckdb"
path = "orders.duckdb"

[target.table]
name = "orders"
"""

_MONDAY = """\
{"order_id": 1, "customer": "Ada", "item": "paper", "quantity": 3, "price": 4.5, "ordered_at": "2026-03-02T08:15:00Z"}
{"order_id": 2, "customer": "Grace", "item": "pen", "quantity": 10, "price": 1.2, "ordered_at": "2026-03-02T09:40:12Z"}
{"order_id": 3, "customer": "Linus", "item": "lamp", "quantity": 1, "price": 39.9, "ordered_at": "2026-03-02T11:05:33Z"}
{"order_id": 4, "customer": "Ada", "item": "pen", "quantity": "two", "price": 1.2, "ordered_at": "2026-03-02T13:22:47Z"}
"""

_TUESDAY = """\
{"order_id": 5, "customer": "Joan", "item": "paper", "quantity": 2, "price": 4.5, "ordered_at": "2026-03-03T07:58:01Z"}
{"order_id": 6, "customer": "Tim", "item": "chair", "quantity": 0, "price": 120, "ordered_at": "2026-03-03T10:10:10Z"}
{"order_id": 7, "customer": "Grace", "item": "lamp", "quantity": 2, "price": 39.9, "ordered_at": "2026-03-03T16:44:29Z"
{"order_id": 8, "customer": "Radia", "item": "pen", "quantity": 25, "price": 1.1, "ordered_at": "2026-03-03T17:30:00Z"}
"""

_README = """\
# Orders

Reads the orders in `data/orders`, one JSON object per line, into the table `orders` of `orders.duckdb`.

    flow validate pipelines.toml      # what the pipeline is and what it promises
    flow run --bounded orders         # read what is there, then stop

Two lines are broken on purpose: they are set aside with the reason, and the others arrive. A second run writes nothing
twice; put another file into `data/orders` and run again. `flow consume orders` waits for new files until Ctrl-C.

What the pipeline remembers is in `.ematix-flow`; without that folder and `orders.duckdb` it begins anew.
"""

_GITIGNORE = """\
.ematix-flow/
*.duckdb
*.duckdb.wal
"""

_FILES = {
    "pipelines.toml": _PIPELINES,
    "data/orders/monday.jsonl": _MONDAY,
    "data/orders/tuesday.jsonl": _TUESDAY,
    "README.md": _README,
    ".gitignore": _GITIGNORE,
}


def write_project(folder: Path) -> list[Path]:
    """Write all files, or none if one of them is there already."""
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file", next_step="name a folder, or one that does not exist yet")
    files = {folder / name: text for name, text in _FILES.items()}
    if existing := [path for path in files if path.exists()]:
        listed = ", ".join(str(path) for path in existing)
        raise UsageError(f"{folder} has these files already: {listed}", next_step="name another folder, or move them")
    try:
        for path, text in files.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        found = f"{error.filename or folder}: {error.strerror}"
        raise UsageError(found, next_step="name a folder you may write to") from None
    return list(files)

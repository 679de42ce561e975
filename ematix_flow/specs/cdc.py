"""Change data capture: how change envelopes are read and how their changes are applied."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from ematix_flow.model import Complaint, Declared, check
from ematix_flow.problems import near
from ematix_flow.specs.fields import Name, Names

_OPERATIONS = ("create", "read", "update", "delete", "truncate")
_SHORT = {operation[0]: operation for operation in _OPERATIONS}


def _in_full(operation: Any) -> Any:
    return _SHORT.get(operation, operation) if isinstance(operation, str) else operation


class CDCTable(Declared):
    """Where the changes of one source table go."""

    table: Name
    """Name of the target table."""
    keys: Names = ()
    """Columns that identify a row; without them, the primary key of the target."""


class CDC(Declared):
    """The rows of the source are changes of tables."""

    envelope: Literal["debezium", "maxwell", "custom"] = "debezium"
    """Format of the change events."""
    op_field: Name | None = None
    """Path of the operation, such as `payload.op`; built-in envelopes know theirs."""
    before_field: Name | None = None
    """Path of the row before the change."""
    after_field: Name | None = None
    """Path of the row after the change."""
    key_field: Name | None = None
    """Path of the key."""
    ts_field: Name | None = None
    """Path of the time of the change."""
    table_field: Name | None = None
    """Path of the name of the changed table, with `tables`; built-in envelopes know theirs."""
    op_map: dict[str, Annotated[str, BeforeValidator(_in_full)]] | None = None
    """Operation in the event -> create, read, update, delete or truncate; c, r, u, d and t for short."""
    delete_mode: Literal["hard", "soft", "ignore"] = "hard"
    """Whether a delete removes the row, marks it or does nothing."""
    soft_delete_column: Name | None = None
    """Column that marks a deleted row, with `delete_mode = "soft"`."""
    truncate_mode: Literal["apply", "ignore", "fail"] = "apply"
    """Whether a truncate empties the table, does nothing or stops the pipeline."""
    transactional: bool = False
    """Whether the changes of a transaction of the source are applied together; needs Debezium's transaction topic."""
    schema_evolution: Literal["skip", "fail", "evolve", "try_evolve", "lenient"] = "skip"
    """What happens to columns that the target does not have."""
    tables: dict[str, CDCTable] | None = None
    """Source table, such as `inventory.customers` -> target table, when one source carries the changes of many."""
    unlisted: Literal["ignore", "create", "fail"] = "fail"
    """What happens to changes of tables that `tables` does not list."""

    @property
    def many(self) -> bool:
        """Whether the changes are of several tables, each with a target table of its own."""
        return self.tables is not None or self.unlisted != "fail"

    @check
    def _custom_says_where(self) -> Iterator[Complaint]:
        if self.envelope == "custom":
            for key in ("op_field", "after_field", "op_map", *(("table_field",) if self.many else ())):
                if not getattr(self, key):
                    yield Complaint((key,), f'missing; envelope = "custom" needs {key}')

    @check
    def _operations_are_known(self) -> Iterator[Complaint]:
        for key, operation in (self.op_map or {}).items():
            if operation not in _OPERATIONS:
                allowed = ", ".join(_OPERATIONS)
                yield Complaint(("op_map", key), f'found "{operation}"', allowed, near(operation, _OPERATIONS))

    @check
    def _only_debezium_tells_of_transactions(self) -> Iterator[Complaint]:
        if self.transactional and self.envelope != "debezium":
            found = f'has no meaning with envelope = "{self.envelope}", which does not tell where a transaction ends'
            yield Complaint(("transactional",), found, 'envelope = "debezium", or transactional = false')

    @check
    def _soft_delete_has_a_column(self) -> Iterator[Complaint]:
        if self.delete_mode == "soft" and self.soft_delete_column is None:
            yield Complaint(("soft_delete_column",), 'missing; delete_mode = "soft" needs it')
        if self.delete_mode != "soft" and self.soft_delete_column is not None:
            found = f'has no meaning with delete_mode = "{self.delete_mode}", only with "soft"'
            yield Complaint(("soft_delete_column",), found)

    @check
    def _each_table_has_its_own_target(self) -> Iterator[Complaint]:
        taken: dict[str, str] = {}
        for source, into in (self.tables or {}).items():
            if into.table in taken:
                found = f'found "{into.table}", which is also the table of "{taken[into.table]}"'
                yield Complaint(("tables", source, "table"), found, "a table of its own")
            taken.setdefault(into.table, source)

    @check
    def _table_field_has_a_use(self) -> Iterator[Complaint]:
        if self.table_field is not None and not self.many:
            yield Complaint(("table_field",), "has no meaning without tables")

"""Connections to cloud warehouses: Snowflake, BigQuery and Redshift."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from pydantic import Field

from ematix_flow.connections.base import Connection, Text
from ematix_flow.model import Complaint, check


class SnowflakeConnection(Connection):
    """A Snowflake account; set `password` or `private_key`."""

    driver_extra: ClassVar[str] = "snowflake"

    account: Text
    """The account identifier."""

    user: Text
    """The user."""

    password: str | None = None
    """The password of the user."""

    private_key: str | None = None
    """The private key of the user as PEM text, instead of a password."""

    warehouse: str | None = None
    """The warehouse that runs the statements."""

    database: str | None = None
    """The default database."""

    schema: str | None = None  # type: ignore[assignment]
    """The default schema."""

    role: str | None = None
    """The role; the user's default role when omitted."""

    kind: Literal["snowflake"] = "snowflake"

    @check
    def password_or_private_key(self) -> Iterator[Complaint]:
        if self.password and self.private_key:
            yield Complaint(("private_key",), "set together with password", "one of the two")
        if not self.password and not self.private_key:
            yield Complaint(("password",), "missing", "password or private_key")


class BigQueryConnection(Connection):
    """A Google BigQuery dataset."""

    driver_extra: ClassVar[str] = "bigquery"

    project: Text
    """The project."""

    dataset: Text
    """The dataset."""

    credentials_path: str | None = None
    """The file of a service account; Application Default Credentials when omitted."""

    location: str | None = None
    """The location of the dataset, such as `europe-west1`."""

    kind: Literal["bigquery"] = "bigquery"


class RedshiftConnection(Connection):
    """An Amazon Redshift cluster."""

    driver_extra: ClassVar[str] = "redshift"

    host: Text
    """The host name of the cluster."""

    port: int = Field(default=5439, ge=1, le=65_535)
    """The port."""

    database: Text
    """The database."""

    user: Text
    """The user."""

    password: Text
    """The password of the user."""

    s3_staging_dir: str | None = None
    """The `s3://bucket/prefix` that bulk loads are staged in."""

    iam_role: str | None = None
    """The role that Redshift assumes to read the staged files."""

    kind: Literal["redshift"] = "redshift"

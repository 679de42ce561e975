"""Connections to Delta tables and to folders of files, local and on S3."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator

from ematix_flow.connections.base import Connection, PathText, Text

FileFormatName = Literal["parquet", "csv", "orc", "json_lines"]
FileFormat = Annotated[FileFormatName, BeforeValidator(lambda value: "json_lines" if value == "jsonl" else value)]

_BY_SUFFIX: dict[str, FileFormatName] = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".orc": "orc",
    ".jsonl": "json_lines",
    ".ndjson": "json_lines",
    ".json": "json_lines",
}
_COMPRESSIONS = frozenset({".gz", ".bz2", ".zst", ".snappy", ".lz4"})


def format_from_path(path: str) -> FileFormatName | None:
    """The format that a path's suffix names, `data.csv.gz` included, or None."""
    name = PurePosixPath(path.lower())
    if name.suffix in _COMPRESSIONS:
        name = name.with_suffix("")
    return _BY_SUFFIX.get(name.suffix)


class DeltaLocalConnection(Connection):
    """Delta tables below a local folder."""

    driver_extra: ClassVar[str] = "delta"

    path: PathText
    """The folder that holds the tables."""

    kind: Literal["delta_local"] = "delta_local"


class _S3(Connection):
    together: ClassVar[tuple[tuple[str, ...], ...]] = (("access_key_id", "secret_access_key"),)

    endpoint: str | None = None
    """The address of an S3-compatible server; AWS itself when omitted."""

    bucket: Text
    """The bucket."""

    region: str | None = None
    """The region of the bucket."""

    access_key_id: str | None = None
    """Static credentials; without them the default AWS credential chain is used."""

    secret_access_key: str | None = None
    """The secret that belongs to `access_key_id`."""


class DeltaS3Connection(_S3):
    """Delta tables in an S3 bucket."""

    driver_extra: ClassVar[str] = "delta"

    prefix: str = ""
    """The folder inside the bucket that holds the tables."""

    kind: Literal["delta_s3"] = "delta_s3"


class ObjectStoreLocalConnection(Connection):
    """Files below a local folder."""

    path: PathText
    """The folder, file or glob."""

    format: FileFormat | None = None
    """parquet, csv, orc or json_lines (jsonl for short); guessed from the suffix of `path` or of the source's `query`
    when omitted."""

    kind: Literal["object_store_local"] = "object_store_local"

    @classmethod
    def completed(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        if given.get("format") not in (None, ""):
            return given
        rest = {key: value for key, value in given.items() if key != "format"}
        guessed = format_from_path(str(given.get("path", "")))
        return {**rest, "format": guessed} if guessed else rest


class ObjectStoreS3Connection(_S3):
    """Files in an S3 bucket."""

    format: FileFormat | None = None
    """parquet, csv, orc or json_lines (jsonl for short); guessed from the suffix of the source's `query` when
    omitted."""

    kind: Literal["object_store_s3"] = "object_store_s3"

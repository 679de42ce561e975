"""The .proto text of a registry to Protobuf's descriptors, by the protoc that comes with grpcio-tools.

Protobuf itself has no compiler in Python, and a registry need not offer anything but the text.
"""

from __future__ import annotations

import base64
import binascii
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ematix_flow.errors import FlowError, MissingExtra
from ematix_flow.sinks.schema_registry import Registry, Schema

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor, FileDescriptor
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

_MAIN = "schema.proto"


class ProtobufUnsuited(FlowError):
    """A Protobuf schema, or columns, that have no counterpart on the other side."""

    code = "protobuf-unsuited"


def needed() -> None:
    for module in ("google.protobuf", "grpc_tools"):
        if importlib.util.find_spec(module.partition(".")[0]) is None or importlib.util.find_spec(module) is None:
            raise MissingExtra(module, "protobuf")


def file_of(registry: Registry, schema: Schema) -> FileDescriptor:
    """With everything that it imports, from the registry or from Protobuf itself."""
    return compiled(schema.text, registry.referenced(schema))


def compiled(text: str, imported: Mapping[str, str]) -> FileDescriptor:
    """In a pool of its own: versions of a schema have the same names."""
    from google.protobuf.descriptor_pool import DescriptorPool

    pool = DescriptorPool()
    for one in _protos(_MAIN, {**imported, _MAIN: text}):
        pool.Add(one)
    return pool.FindFileByName(_MAIN)


def message_at(file: FileDescriptor, indexes: tuple[int, ...]) -> Descriptor:
    """Confluent's way to name a message: its place in the file, then that of each message nested in the one before."""
    found, *nested = (list(file.message_types_by_name.values())[indexes[0]], *indexes[1:])
    for index in nested:
        found = found.nested_types[index]
    return found


def _protos(name: str, texts: Mapping[str, str]) -> list[FileDescriptorProto]:
    """Of a file and all that it imports, what is imported first."""
    known: dict[str, FileDescriptorProto] = {}
    _collect(name, texts, known)
    return list(known.values())


def _collect(name: str, texts: Mapping[str, str], known: dict[str, FileDescriptorProto]) -> None:
    given = _from_base64(name, texts.get(name, ""))
    if given is None:
        known |= {one.name: one for one in _compile(name, texts) if one.name not in known}
        return
    for imported in given.dependency:
        if imported not in known:
            _collect(imported, texts, known)
    known[name] = given


def _from_base64(name: str, text: str) -> FileDescriptorProto | None:
    """Some clients register the descriptor itself, and some registries give back what was registered."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto
    from google.protobuf.message import DecodeError

    try:
        found = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return None
    if not text.strip():
        return None
    found.name = name
    return found


def _compile(name: str, texts: Mapping[str, str]) -> list[FileDescriptorProto]:
    """In a process of its own, because protoc writes what is wrong to its standard error."""
    from google.protobuf.descriptor_pb2 import FileDescriptorSet

    with tempfile.TemporaryDirectory(prefix="ematix-flow-proto-") as given:
        folder = Path(given)
        for path, text in texts.items():
            file = folder / path
            if not file.resolve().is_relative_to(folder.resolve()):
                raise ProtobufUnsuited(f"the schema imports {path}", next_step="name a file below the schema's own")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
        found = folder / "descriptors"
        own = Path(str(importlib.util.find_spec("grpc_tools").submodule_search_locations[0])) / "_proto"  # type: ignore[union-attr,index]
        words = [f"--proto_path={folder}", f"--proto_path={own}", "--include_imports", f"--descriptor_set_out={found}"]
        command = [sys.executable, "-P", "-m", "grpc_tools.protoc", *words, name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProtobufUnsuited(
                f"the registered schema is no Protobuf that can be compiled: {' '.join(done.stderr.split())}",
                next_step="correct it in the registry, with the schemas that it imports as its references",
            )
        return list(FileDescriptorSet.FromString(found.read_bytes()).file)

"""Protobuf's schemas: what a registry has, as the descriptors that decoders need.

A registry has the text of a .proto file, or, from some producers, its descriptor in base64. The text is compiled by protoc, which grpcio-tools
ships, where the registry is asked; so executors need no compiler.
"""

from __future__ import annotations

import base64
import binascii
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from statehouse.payload import Refused

SECONDS = 30  # that protoc may take
MAIN = "statehouse_payload.proto"


def compile_schema(text: str, references: Mapping[str, str]) -> str:
    """A schema and all files that it imports, as a FileDescriptorSet in base64 in which the schema is last. ``references`` are texts by
    name. Raises Refused where protoc does not compile it."""
    main = _read_descriptor(text)
    if main is None:
        descriptors = _compile_by_protoc(text, references)
    else:
        descriptors = FileDescriptorSet()
        _add(main, references, descriptors)
    return base64.b64encode(descriptors.SerializeToString()).decode()


def read_descriptors(text: str) -> FileDescriptorSet:
    """The descriptors in the text that :func:`compile_schema` returned. Raises Refused for any other text."""
    try:
        descriptors = FileDescriptorSet.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError):
        descriptors = FileDescriptorSet()
    if not descriptors.file:
        raise Refused("found a schema that cannot be read, expected a Protobuf file")
    return descriptors


def _read_descriptor(text: str) -> FileDescriptorProto | None:
    """A file's descriptor that is given in base64; None where it is text."""
    try:
        return FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (DecodeError, binascii.Error, ValueError):
        return None


def _add(file: FileDescriptorProto, references: Mapping[str, str], into: FileDescriptorSet) -> None:
    """Put a file behind those that it imports."""
    for name in file.dependency:
        if name in (known.name for known in into.file):
            continue
        if name in references:
            other = _read_descriptor(references[name])
            if other is None:
                other = _compile_by_protoc(references[name], references, name).file[-1]
            other.name = name
        else:
            other = FileDescriptorProto()
            try:
                _load_well_known()
                descriptor_pool.Default().FindFileByName(name).CopyToProto(other)
            except KeyError:
                raise Refused(f"found an import of {name}, expected a schema that the registry refers to") from None
        _add(other, references, into)
    into.file.append(file)


def _load_well_known() -> None:
    """Have the files that come with Protobuf in the default pool."""
    from google.protobuf import (  # noqa: F401
        any_pb2,
        duration_pb2,
        empty_pb2,
        field_mask_pb2,
        struct_pb2,
        timestamp_pb2,
        wrappers_pb2,
    )


def _compile_by_protoc(text: str, references: Mapping[str, str], name: str = MAIN) -> FileDescriptorSet:
    with tempfile.TemporaryDirectory(prefix="statehouse-") as folder:
        for path, content in {**references, name: text}.items():
            file = Path(folder, path)
            if not file.resolve().is_relative_to(Path(folder).resolve()):
                raise Refused(f"found a reference named {path}, expected the path of a file")
            file.parent.mkdir(parents=True, exist_ok=True)
            descriptor = _read_descriptor(content)
            if descriptor is not None:
                raise Refused(f"found {path} as a descriptor, expected text as the file that imports it")
            file.write_text(content, encoding="utf-8")
        output = Path(folder, "descriptors")
        # A process of its own: protoc writes what is wrong to its stderr, and knows no threads.
        options = [f"-I{folder}", "--include_imports", f"--descriptor_set_out={output}", name]
        try:
            protoc = subprocess.run(
                [sys.executable, "-c", _PROTOC, *options], capture_output=True, text=True, timeout=SECONDS
            )
        except subprocess.TimeoutExpired:
            raise Refused(
                f"found a schema that protoc does not compile in {SECONDS} seconds, expected one that it does"
            ) from None
        if protoc.returncode:
            detail = " ".join(protoc.stderr.replace(folder, "").split())[:200]
            raise Refused(f"found a schema that cannot be read ({detail}), expected a Protobuf file")
        return FileDescriptorSet.FromString(output.read_bytes())


_PROTOC = (
    "import sys, os, grpc_tools; from grpc_tools import protoc; "
    "own = os.path.join(os.path.dirname(grpc_tools.__file__), '_proto'); "
    "sys.exit(protoc.main(['protoc', *sys.argv[1:-1], '-I' + own, sys.argv[-1]]))"
)

"""Files of Avro: the schema, and each record as a topic without a registry has it.

A file keeps its records in blocks without saying where one ends. So each is read once to find that, and its bytes are read again by who
decodes it: then a file's record means what a topic's does.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fastavro

from statehouse.formats.avro import AvroSchema
from statehouse.formats.format import AVRO, KINDS, Schema


def schema_of(path: str | Path) -> Schema:
    """The schema that a file's records were written by. Raises ValueError where it is no file of Avro."""
    with open(path, "rb") as file:
        return Schema(KINDS[AVRO], fastavro.block_reader(file).metadata["avro.schema"])


def records_of(path: str | Path) -> Iterator[bytes]:
    """The bytes of each record. Raises whatever fastavro does where a block is broken."""
    schema = AvroSchema(schema_of(path))
    with open(path, "rb") as file:
        block: Any  # whose bytes its stubs do not know
        for block in fastavro.block_reader(file):
            data: io.BytesIO = block.bytes_
            start, content = data.tell(), data.getbuffer()
            for _ in range(block.num_records):
                schema.read(data, schema.plain, None)
                yield bytes(content[start : data.tell()])
                start = data.tell()

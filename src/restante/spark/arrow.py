"""Converts journal blocks and stored messages to Arrow: here alone the journal's text becomes typed columns.

The lines have the form that Arrow's CSV reader reads fastest (tabs, no quotes), so Python never splits a block. On
failure: lines of a format that this client does not know raise Corrupt.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv

from restante.core.errors import Corrupt
from restante.core.journal import COLUMNS, FORMAT
from restante.core.journal_reader import Block, JournalReader
from restante.core.stored import Stored
from restante.spark.schemas import JOURNAL, Table

#: Rows of one Arrow batch: each costs Spark and the CSV reader a fixed time, and its rows take memory.
BATCH = 32_768
_PARSE = csv.ParseOptions(delimiter="\t", quote_char=False, escape_char=False, ignore_empty_lines=False)
_MILLISECONDS = ("at", "sent_at", "due_at")
_TYPES = {name: pa.int64() for name in _MILLISECONDS} | dict.fromkeys(("priority", "size", "attempts"), pa.int32())
_CONTENT = {"payload": pa.binary(), "headers": pa.string(), "content_type": pa.string()}
#: Beginnings of the lines whose entry may carry the stored form.
_CARRIERS = (b"1\tsent\t", b"1\tedited\t")


def batches(
    reader: JournalReader,
    queue: str,
    incarnation: int,
    after: int,
    upto: int,
    names: tuple[str, ...],
    *,
    pass_gaps: bool,
) -> Iterator[pa.RecordBatch]:
    """Yields the lines after one number, up to another, as Arrow batches with the columns named."""
    held: list[Block] = []
    rows = 0
    for page in reader.blocks(queue, after, upto, pass_gaps=pass_gaps):
        for block in page:
            if held and block.first != held[-1].last + 1:
                yield _batch(queue, incarnation, held, after, upto, names)
                held, rows = [], 0
            held.append(block)
            rows += block.last - block.first + 1
        if rows >= BATCH:
            yield _batch(queue, incarnation, held, after, upto, names)
            held, rows = [], 0
    if held:
        yield _batch(queue, incarnation, held, after, upto, names)


def _batch(
    queue: str, incarnation: int, blocks: Sequence[Block], after: int, upto: int, names: tuple[str, ...]
) -> pa.RecordBatch:
    """Adjacent blocks as one batch, cut to the requested lines."""
    first, last = blocks[0].first, blocks[-1].last
    text = b"\n".join([block.lines for block in blocks])
    wanted = [name for name in COLUMNS if name in names or name == "format"]
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            csv.ReadOptions(column_names=COLUMNS, use_threads=False, block_size=max(len(text) + 1, 1024)),
            _PARSE,
            csv.ConvertOptions(
                include_columns=wanted,
                column_types={name: _TYPES.get(name, pa.string()) for name in wanted},
                null_values=[""],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        raise Corrupt(f"journal lines {first} to {last} of {queue} cannot be read: {error}") from None
    if table.num_rows != last - first + 1 or not pc.all(pc.equal(table["format"], FORMAT)).as_py():
        raise Corrupt(f"journal lines {first} to {last} of {queue} are not of format {FORMAT}: update this client")
    start = max(0, after + 1 - first)
    count = min(last, upto) - first + 1 - start
    columns: dict[str, Any] = {}
    for name in names:
        if name in _MILLISECONDS:
            columns[name] = _instants(table[name].combine_chunks(), name)
        elif name in _TYPES:
            columns[name] = pc.fill_null(table[name].combine_chunks(), 0)
        elif name in COLUMNS:
            columns[name] = table[name].combine_chunks()
        elif name == "queue":
            columns[name] = pa.repeat(pa.scalar(queue), table.num_rows)
        elif name == "incarnation":
            columns[name] = pa.repeat(pa.scalar(incarnation, pa.int64()), table.num_rows)
        elif name == "position":
            numbers = array("q", range(first, last + 1))
            columns[name] = pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
    if any(name in names for name in _CONTENT):
        columns |= _contents(blocks, table.num_rows)
    batch = pa.record_batch([columns[name] for name in names], schema=JOURNAL.arrow(names))
    return batch.slice(start, count)


def rows_as_batch(table: Table, names: tuple[str, ...], rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Rows of a table as an Arrow batch with the columns named."""
    schema, held = table.arrow(names), list(rows)
    columns = [pa.array([row[name] for row in held], schema.field(name).type) for name in names]
    return pa.record_batch(columns, schema=schema)


def _instants(numbers: pa.Array, name: str) -> pa.Array:
    """Milliseconds as timestamps; 0 means none, except in `at`."""
    if name != "at":
        numbers = pc.if_else(pc.equal(numbers, 0), None, numbers)
    return pc.multiply(numbers, 1000).cast(pa.timestamp("us", tz="UTC"))


def _contents(blocks: Sequence[Block], rows: int) -> dict[str, pa.Array]:
    """Payload, headers and content type of the lines that carry their message; null elsewhere."""
    if not any(block.stored for block in blocks):
        return {name: pa.nulls(rows, type) for name, type in _CONTENT.items()}
    columns: tuple[list[Any], list[Any], list[Any]] = ([], [], [])
    for block in blocks:
        if not block.stored:
            for column in columns:
                column.extend([None] * (block.last - block.first + 1))
            continue
        for line in block.lines.split(b"\n"):
            form = block.stored.get(line.split(b"\t", 5)[4]) if line.startswith(_CARRIERS) else None
            parts = (None, None, None) if form is None else content(Stored(form))
            for column, value in zip(columns, parts, strict=True):
                column.append(value)
    return {name: pa.array(column, type) for column, (name, type) in zip(columns, _CONTENT.items(), strict=True)}


def content(stored: Stored) -> tuple[bytes, str, str]:
    """A stored message's payload, headers and content type as the tables show them."""
    options = stored.options
    headers = options.get("h")
    return stored.body, orjson.dumps(headers).decode() if headers else "", stored.content_type

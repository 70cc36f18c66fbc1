"""Writes docs/reference/spark.md from the code: formats, options, tables and columns. Run it when they change."""

from __future__ import annotations

from pathlib import Path

from restante.spark import schemas
from restante.spark.options import reference
from restante.spark.writer import SEND_COLUMNS, SETTLE_COLUMNS

PAGE = Path(__file__).parent / "reference" / "spark.md"

HEAD = """# Spark: formats, options, tables

Generated from the code by `python docs/spark_reference.py`; a test compares both. The [guide](../guide/spark.md)
shows how to use it.

## Formats

| Call | `kind` / `op` | Reads or writes |
|---|---|---|
| `spark.read.format("restante")` | `kind=journal` (default) | one row per journal line; [columns](#journal) |
| | `kind=queue`, `dead`, `done` | the messages in queues now; [columns](#queue) |
| | `kind=rsmq` | the messages of RSMQ queues; [columns](#rsmq) |
| `spark.readStream.format("restante")` | `kind=journal` | every line once; offsets are line numbers |
| | `kind=leases` | Spark as a consumer; [columns](#leases) |
| `df.write`, `df.writeStream` | `op=send` (default) | columns {send}; without `payload` the others become its JSON |
| | `op=settle` | columns {settle}; the first three are required |
| | `op=replay` | columns `message_id`, `payload` and those of `op=send`; sends copies under new ids |

`spark.read` accepts `.schema(…)` with fewer columns and then reads only those. SQL: `CREATE TEMPORARY VIEW j USING
restante OPTIONS (url '…', kind 'journal')`, or `CREATE TABLE`. Spark finds the format by itself where Restante is
installed; `restante.spark.register(spark)` registers it with a session that did not. Writing needs `.mode("append")`.

A row of `kind=leases` is settled by its `lease_token`. `verdict` is one of `ack`, `nack`, `bury`, `release`.

## Options

Names are not case sensitive. An unknown option is refused.

| Option | Default | Meaning |
|---|---|---|
"""


def page() -> str:
    """The content of the page."""
    send = ", ".join(f"`{name}`" for name in SEND_COLUMNS)
    settle = ", ".join(f"`{name}`" for name in SETTLE_COLUMNS)
    lines = [HEAD.replace("{send}", send).replace("{settle}", settle).rstrip("\n")]
    for name, default, about in reference():
        lines.append(f"| `{name}` | {f'`{default}`' if default not in ('', '0', '0.0') else '–'} | {about} |")
    lines += ["", "## Tables that are read", ""]
    for table in schemas.KINDS.values():
        lines += _table(table)
    lines += [
        "## The lake",
        "",
        "Plain Parquet (zstd, microseconds, UTC). Folders: `bronze/batch=N/`, `bronze_compact/dt=…/` (both with the "
        "columns of [journal](#journal)), `silver/<table>/dt=…/`, `gold/<table>/dt=…/`, `replays/<name>/`, "
        "`_checkpoints/`, `_state.json`. `dt` is the date of sending. Counts of one minute may be under two "
        "dates; they add up.",
        "",
    ]
    for layer, tables in (("silver", schemas.SILVER), ("gold", schemas.GOLD), ("gold", schemas.SUMMED)):
        for table in tables:
            lines += _table(table, layer)
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(table: schemas.Table, layer: str = "") -> list[str]:
    lines = [
        f"### {table.name}",
        "",
        f"{table.about[0].upper()}{table.about[1:]}." + (f" In {layer}." if layer else ""),
        "",
    ]
    lines += ["| Column | Type | Content |", "|---|---|---|"]
    lines += [f"| `{column.name}` | {table.spark_type(column.name)} | {column.about} |" for column in table.columns]
    return [*lines, ""]


if __name__ == "__main__":
    PAGE.write_text(page())

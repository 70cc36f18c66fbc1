"""The report of a lake: one HTML page, drawn from the gold tables.

| Module | Does |
|---|---|
| `page` | writes the page |
| `load` | reads the gold tables into the model |
| `model` | the figures the page shows |
| `findings` | what is wrong, and what to watch |
| `summary`, `panels`, `tables` | the sections of the page: findings and tiles, charts, tables |
| `elements` | what sections share: marks, cells, tables |
| `charts`, `scales`, `formats` | draws SVG from numbers: drawings, axes, numbers as text |
"""

from restante.spark.report.page import ReportSummary, write

__all__ = ["ReportSummary", "write"]

"""The report of a lake: one HTML page, drawn from the gold tables.

| Module | Does |
|---|---|
| `page` | writes the page |
| `load` | reads the gold tables into the model |
| `model` | the figures the page shows |
| `findings` | what is wrong, and what to watch |
| `sections`, `tables` | the parts of the page: charts and tiles, tables |
| `charts` | draws SVG from numbers |
"""

from restante.spark.report.page import ReportSummary, write

__all__ = ["ReportSummary", "write"]

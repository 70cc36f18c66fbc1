"""Restante on Spark: the data source `restante`, the lake, and Spark as a consumer.

| Spark's word | ours |
|---|---|
| offset | position: the number of a journal's line, or of a lease journal's row |
| micro-batch | batch |
| sink, writer | `op=send`, `op=settle`, `op=replay` |
| checkpoint | how far a query is; the journal knows it as a registered reader |
"""

from __future__ import annotations

import importlib.util

from restante.core.errors import MissingExtra

if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
    raise MissingExtra("Spark is not installed: pip install 'restante[spark]'", name="pyspark")

from restante.spark.source import RestanteSource, register
from restante.spark.verdicts import Bury, RetryLater, try_map

__all__ = ["Bury", "RestanteSource", "RetryLater", "register", "try_map"]

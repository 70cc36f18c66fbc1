"""Spark looks for modules of this name's form at its start: with Restante installed `format("restante")` is there."""

from restante.spark.source import RestanteSource as DefaultSource

__all__ = ["DefaultSource"]

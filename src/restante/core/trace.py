"""The W3C trace context of this thread or task, if the program uses OpenTelemetry, which this never imports first."""

from __future__ import annotations

import sys
from typing import Final

#: The headers that carry a trace, in messages as in HTTP.
TRACE: Final = ("traceparent", "tracestate")


def current_trace() -> dict[str, str]:
    """The trace context as headers; empty outside a trace."""
    if "opentelemetry" not in sys.modules:
        return {}
    from opentelemetry import propagate

    carrier: dict[str, str] = {}
    propagate.inject(carrier)
    return {name: value for name, value in carrier.items() if name in TRACE}

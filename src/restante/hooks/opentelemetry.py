"""Traces and metrics by OpenTelemetry's messaging conventions: `client.add_hook(OpenTelemetry())`.

The trace context travels in the headers `traceparent` and `tracestate`, which the bus, Celery's instrumentation and
the HTTP API use too: a handler continues the trace whoever sent its message. Without OpenTelemetry's SDK its API does
nothing; without the API this module raises MissingExtra.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from restante.core.extras import needs_extra
from restante.core.message import Draft, Message
from restante.hooks.processing import Processing

with needs_extra("opentelemetry", "restante.hooks.opentelemetry"):
    from opentelemetry import metrics, propagate, trace
    from opentelemetry.trace import Span, SpanKind

#: The name of the messaging system, and of the instrumentation.
SYSTEM: Final = "restante"
#: Seconds: bounds of the histogram of durations, as the conventions advise. The SDK's own are for milliseconds.
_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)


class OpenTelemetry(Processing):
    """A span `create <queue>` for each message that is sent, a span `process <queue>` around each handler, and metrics.

    The providers are those of the process, unless others are given. Register it once, on the client.
    """

    def __init__(
        self,
        *,
        tracer_provider: trace.TracerProvider | None = None,
        meter_provider: metrics.MeterProvider | None = None,
    ) -> None:
        self._tracer = trace.get_tracer(SYSTEM, tracer_provider=tracer_provider)
        meter = metrics.get_meter(SYSTEM, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages", "{message}", "Messages that were handed over to be sent."
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages", "{message}", "Messages that were delivered to a handler."
        )
        self._duration = meter.create_histogram(
            "messaging.process.duration",
            "s",
            "Duration of the handler and of the hooks inside this one.",
            explicit_bucket_boundaries_advisory=_BOUNDS,
        )

    def sending(self, queue: str, draft: Draft) -> Draft:
        """Puts the context of a new span into the headers, unless the message has one: it may be forwarded."""
        attributes = _attributes(queue, "send")
        self._sent.add(1, attributes)
        if draft.headers and "traceparent" in draft.headers:
            return draft
        span = self._tracer.start_span(
            f"create {queue}",
            kind=SpanKind.PRODUCER,
            attributes={**_attributes(queue, "create"), **_facts(draft.id or "", draft.kind)},
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        # Ended before the message is on its way: the send is one call for many messages, and the hook sees each.
        span.end()
        return replace(draft, headers={**(draft.headers or {}), **carrier})

    @contextmanager
    def processing(self, message: Message) -> Iterator[Span]:
        """The span around the handling of a message, in the sender's trace; an error that leaves the block marks it.

        In a loop: `with message, otel.processing(message):`, in this order, since `message` ends the error's way.
        """
        message.inside_hooks = True
        attributes = _attributes(message.queue, "process")
        self._consumed.add(1, attributes)
        facts = _facts(message.id, message.kind) | {
            "messaging.message.body.size": message.size,
            "messaging.consumer.name": message.consumer,
            "messaging.restante.message.attempts": message.attempts,
        }
        started = time.perf_counter()
        try:
            with self._tracer.start_as_current_span(
                f"process {message.queue}",
                propagate.extract(_texts(message.headers)),
                kind=SpanKind.CONSUMER,
                attributes={**attributes, **facts},
            ) as span:
                try:
                    yield span
                except BaseException as error:
                    attributes["error.type"] = type(error).__qualname__
                    span.set_attribute("error.type", type(error).__qualname__)
                    raise
        finally:
            self._duration.record(time.perf_counter() - started, attributes)


def _attributes(queue: str, operation: str) -> dict[str, str | int]:
    """The attributes of spans and metrics alike: few values, since each combination is a series of its own."""
    return {
        "messaging.system": SYSTEM,
        "messaging.destination.name": queue,
        "messaging.operation.name": operation,
        "messaging.operation.type": operation,
    }


def _facts(id: str, kind: str) -> dict[str, str | int]:
    """What spans say of one message."""
    return {"messaging.message.id": id, **({"messaging.restante.message.kind": kind} if kind else {})}


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    """The headers that propagators can read: a sender may have put any JSON there."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}

"""Reports failures of handlers to Sentry, each with its message: `client.add_hook(Sentry())` after `sentry_sdk.init`.

Without `sentry_sdk.init` nothing is reported; without the package this module raises MissingExtra.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal

from restante.core.errors import InvalidInput
from restante.core.extras import needs_extra
from restante.core.message import Draft, Message
from restante.hooks.processing import Processing

with needs_extra("sentry", "restante.hooks.sentry"):
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.tracing import TransactionSource


class Sentry(Processing):
    """A scope of its own around each handler, an event for each failure, and Sentry's traces from send to handler.

    With `report="dead"` only the failure that makes a message dead is reported, not those that are retried; such an
    event lacks the breadcrumbs of the handler.
    """

    def __init__(self, *, report: Literal["every", "dead"] = "every") -> None:
        if report not in ("every", "dead"):
            raise InvalidInput(f"report must be every or dead, not {report!r}")
        self._every = report == "every"
        # The consumer logs each failure as an error, of which Sentry would make a second event.
        ignore_logger("restante")

    def sending(self, queue: str, draft: Draft) -> Draft:
        """Puts the sender's trace into the headers, unless the message has one."""
        carrier = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
        given = draft.headers or {}
        if "sentry-trace" in given or not carrier["sentry-trace"]:
            return draft
        return replace(draft, headers={**{name: text for name, text in carrier.items() if text}, **given})

    def dead(self, message: Message, error: BaseException) -> None:
        if not self._every:
            with sentry_sdk.isolation_scope() as scope:
                _describe(scope, message)
                _report(error)

    @contextmanager
    def processing(self, message: Message) -> Iterator[None]:
        """The scope around the handling of a message. In a loop: `with message, sentry.processing(message):`."""
        message.inside_hooks = True
        with sentry_sdk.isolation_scope() as scope:
            _describe(scope, message)
            headers = {name: text for name, text in message.headers.items() if isinstance(text, str)}
            transaction = sentry_sdk.continue_trace(
                headers,
                op="queue.process",
                name=_name(message),
                source=TransactionSource.TASK,
                origin="auto.queue.restante",
            )
            with sentry_sdk.start_transaction(transaction) as span:
                span.set_data("messaging.message.id", message.id)
                span.set_data("messaging.destination.name", message.queue)
                span.set_data("messaging.message.body.size", message.size)
                span.set_data("messaging.message.retry.count", message.attempts - 1)
                try:
                    yield
                except Exception as error:
                    if self._every:
                        _report(error)
                    raise


def _name(message: Message) -> str:
    return f"{message.queue} {message.kind}" if message.kind else message.queue


def _describe(scope: sentry_sdk.Scope, message: Message) -> None:
    """Puts the message's facts on the scope, never its payload, which may hold personal data."""
    scope.set_transaction_name(_name(message), source=TransactionSource.TASK)
    scope.set_tag("restante.queue", message.queue)
    scope.set_tag("restante.kind", message.kind)
    scope.set_context(
        "restante",
        {
            "queue": message.queue,
            "message_id": message.id,
            "kind": message.kind,
            "attempts": message.attempts,
            "replays": message.replays,
            "sent_at": message.sent_at.isoformat(),
            "consumer": message.consumer,
        },
    )


def _report(error: BaseException) -> None:
    event, hint = sentry_sdk.utils.event_from_exception(
        error,
        client_options=sentry_sdk.get_client().options,
        mechanism={"type": "restante", "handled": False},
    )
    sentry_sdk.capture_event(event, hint=hint)

"""Faults planted in what tests of users use, and in the shipped hooks."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_CLOCK = ("tests/testing/test_clock.py",)
_DRAINING = ("tests/testing/test_draining.py",)
_SENT = ("tests/testing/test_sent.py",)
_TELEMETRY = ("tests/hooks/test_opentelemetry.py",)

FAULTS: Final = (
    Fault(
        "testing",
        "keys that expire by themselves do not grow older when the clock is moved",
        "Clock.move",
        "        self._age(span // 1000)\n",
        "",
        _CLOCK,
    ),
    Fault(
        "testing",
        "scripts keep the moved clock after the test",
        "restore_scripts",
        "        _write(script, text)\n",
        "        pass\n",
        _CLOCK,
    ),
    Fault(
        "testing",
        "queues that a module has opened lose their options between two tests",
        "PrivateServer.clear",
        "                client.reopen()\n",
        "                pass\n",
        ("tests/testing/test_plugin.py",),
    ),
    Fault(
        "testing",
        "a failed handler acks its message",
        "DrainableQueue.attempt",
        "            self._listeners.tell_failed(given, error, state)\n            raise\n",
        "            self._listeners.tell_failed(given, error, state)\n",
        _DRAINING,
    ),
    Fault(
        "testing",
        "an event with two subscriptions counts twice",
        "_all_events",
        "            by_id.setdefault(message.id, message)\n",
        "            by_id[message.id + message.queue] = message\n",
        _SENT,
    ),
    Fault(
        "hooks",
        "a forwarded message gets a new trace",
        "OpenTelemetry.sending",
        'if draft.headers and "traceparent" in draft.headers:',
        "if False:",
        _TELEMETRY,
    ),
    Fault(
        "hooks",
        "a handler starts a trace of its own",
        "OpenTelemetry.processing",
        "propagate.extract(_texts(message.headers))",
        "None",
        _TELEMETRY,
    ),
    Fault(
        "hooks",
        "what a handler tells Sentry reaches the next message",
        "Sentry.processing",
        "with sentry_sdk.isolation_scope() as scope:",
        "with sentry_sdk.new_scope() as scope:",
        ("tests/hooks/test_sentry.py",),
    ),
    Fault(
        "server",
        "HTTP overwrites the trace that a message has",
        "_traced",
        """if not trace or "traceparent" in (draft.headers or {}):""",
        "if not trace:",
        _TELEMETRY,
    ),
)

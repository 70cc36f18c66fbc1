"""Faults planted in the compatibility doors."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_AMQP_EVENTS = ("tests/compat/test_amqp_events.py::TestWithoutABroker",)
_TCHU_TCHU = ("tests/compat/test_tchu_tchu.py::TestWithoutABroker",)

FAULTS: Final = (
    Fault(
        "compat",
        "a program of celery-amqp-events gets one retry less than it had",
        "EventsCelery.__init__",
        "max_attempts=retries + 1",
        "max_attempts=retries",
        _AMQP_EVENTS,
    ),
    Fault(
        "compat",
        "arguments given by position reach the handler by the event's names",
        "_with_arguments",
        "count = int(envelope.headers.get(POSITIONAL, 0))",
        "count = 0",
        _AMQP_EVENTS,
    ),
    Fault(
        "compat",
        "an event is published although its validation fails",
        "Event.__call__",
        "        self.func(*args, **kwargs)\n",
        "",
        _AMQP_EVENTS,
    ),
    Fault(
        "compat",
        "AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH is not obeyed",
        "_archive",
        ', "archive_length": length}',
        "}",
        _AMQP_EVENTS,
    ),
    Fault(
        "compat",
        "an event that names no sender skips the serializer's checks",
        "TchuEvent._received",
        "event.serialize_request(data, context, self._skips,",
        "event.serialize_request(data, context, self._skips or not known,",
        _TCHU_TCHU,
    ),
    Fault(
        "compat",
        "the authorization hook is not asked who the sender is",
        "TchuEvent._received",
        "context = helper(data) if helper and known else None",
        "context = data if known else None",
        _TCHU_TCHU,
    ),
    Fault(
        "compat",
        "a handler without autoretry_for is retried after every error",
        "Registry.register",
        "{**_DEFAULTS, **options}",
        "{**options}",
        _TCHU_TCHU,
    ),
    Fault(
        "compat",
        "countdown, priority and expires of a publish have no effect",
        "published",
        "client().publish(routing_key, plain(body), **cast(PublishOptions, words))",
        "client().publish(routing_key, plain(body), **cast(PublishOptions, words and {}))",
        _TCHU_TCHU,
    ),
    Fault(
        "compat",
        "a handler's refusal counts as a failure of the event",
        "_event",
        "return None",
        "raise",
        _TCHU_TCHU,
    ),
    Fault(
        "compat",
        "PyRSMQ's consumer deletes what its processor declined",
        "RedisSMQConsumer._process",
        "if not self.processor(id=message.id, message=body, rc=message.rc, ts=message.fr):",
        "if self.processor(id=message.id, message=body, rc=message.rc, ts=message.fr) is None:",
        ("tests/rsmq/test_pyrsmq.py",),
    ),
)

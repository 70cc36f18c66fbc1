"""Faults planted in the bus."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_DELIVERIES = ("tests/bus/test_deliveries.py",)
_EARLY = ("tests/bus/test_early_acks.py::test_early_acks_by_a_setting_of_the_app_are_the_same[rabbitmq]",)
_VERDICTS = (
    "tests/bus/test_verdicts.py::test_a_retry_and_a_dead_letter_that_cannot_be_published_survive_a_killed_worker",
)
_NO_EVENT = ("tests/bus/test_verdicts.py::test_a_message_that_is_no_event_is_kept_among_the_dead",)
_STRAYS = ("tests/bus/test_strays.py::test_they_reach_their_handlers_when_a_worker_starts_or_connects_again",)
_UNHEARD = ("tests/bus/test_scenario.py::TestEvents::test_an_event_nobody_listens_to_is_kept_or_refused[rabbitmq]",)
_REPLIES = "tests/bus/test_bus.py::TestReplies::test_a_reply_goes_nowhere_but_to_its_caller"
_BATCH = "tests/bus/test_batch.py"
_KEYWORDS = ("tests/bus/test_keywords.py::TestUnknownKeywords",)
_ADOPTION = ("tests/compat/test_adoption.py",)

FAULTS: Final = (
    Fault(
        "bus",
        "dedup=0 of a bus keeps records of a window of no length",
        "open_records",
        "    if window == 0:\n        return NoRecords() if redis is None else JournalOnly(redis.connection, prefix)\n",
        "",
        (*_KEYWORDS, "-k", "records_in_redis_need_one"),
    ),
    Fault(
        "bus",
        "without deduplication an event whose early ack was lost runs twice",
        "RedisWorker._begun",
        "self._window or WINDOW",
        "self._window",
        ("tests/bus/test_bus.py", "-k", "early_ack_holds"),
    ),
    Fault(
        "bus",
        "on RabbitMQ a retry is acknowledged before it is published",
        "RabbitWorker.retry",
        "        self._publish(message, body, headers, exchange, key, delivery.envelope.id)\n"
        "        _ack(message, request)\n",
        "        _ack(message, request)\n"
        "        self._publish(message, body, headers, exchange, key, delivery.envelope.id)\n",
        _VERDICTS,
    ),
    Fault(
        "bus",
        "on RabbitMQ a dead event is acknowledged before the archive has it",
        "RabbitWorker.bury",
        "        if not self._options.archive:\n",
        "        _ack(message, request)\n        if not self._options.archive:\n",
        _VERDICTS,
    ),
    Fault(
        "bus",
        "a verdict that the broker refused counts as told",
        "RabbitWorker._publish",
        'if not self._pool.publish(raw, headers, {**kept, "delivery_mode": 2}, exchange, key, id=id):',
        'if self._pool.publish(raw, headers, {**kept, "delivery_mode": 2}, exchange, key, id=id) is None:',
        _VERDICTS,
    ),
    Fault(
        "bus",
        "a message that is no event is dropped instead of kept among the dead",
        "handler_receiver",
        "bus.worker_backend.bury(message, None, RemoteError(type(error).__name__, str(error)))",
        "message.ack()",
        _NO_EVENT,
    ),
    Fault(
        "bus",
        "a retry on RabbitMQ does not count its attempt, so the event is retried for ever",
        "RabbitWorker.retry",
        '"restante_attempts": delivery.envelope.attempts,',
        '"restante_attempts": delivery.envelope.attempts - 1,',
        _EARLY,
    ),
    Fault(
        "bus",
        "a dead letter on RabbitMQ does not say what killed it",
        "RabbitWorker.bury",
        "            **error_headers(original, error),\n",
        "",
        _NO_EVENT,
    ),
    Fault(
        "bus",
        "rejections that RabbitMQ counted are no attempts",
        "attempts_of",
        "return published + counted + quorum + 1",
        "return published + quorum + 1",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "the success of an event is not recorded, so its double runs too",
        "handle",
        'claim.confirm(bus.worker_backend.line(delivery, JournalEvent.ACKED, "gone"))',
        'bus.note(delivery, JournalEvent.ACKED, "gone")',
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "an event counts as done before its handler has run, so a failure is never retried",
        "handle",
        "    try:\n        handler.run(task, envelope, handler.value(envelope, text))",
        "    claim.confirm(None)\n    try:\n        handler.run(task, envelope, handler.value(envelope, text))",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "the record of a failed run is kept, so its next delivery is taken for a double",
        "handle",
        "        release(bus, handler, delivery)\n        delay = handler.retry_rule.delay(envelope.attempts, error)",
        "        claim.confirm(None)\n        delay = handler.retry_rule.delay(envelope.attempts, error)",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "an event whose delivery began in a process that was killed is passed over as if it were at work",
        "handle",
        "if taken is Taken.ABANDONED:",
        "if taken is Taken.ABANDONED:\n        return\n    if False:",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "an event whose process was killed is passed over as if it were at work",
        "_require_running",
        "if delivery.suspect:",
        "if False:",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "data that can never fit the handler's model are retried as any failure",
        "RetryRule.delay",
        " or isinstance(error, InvalidPayload)",
        "",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "a handler gets one attempt more than it should",
        "RetryRule.delay",
        "attempts >= self.max_attempts",
        "attempts > self.max_attempts",
        ("tests/bus/test_bus.py::TestHandlers",),
    ),
    Fault(
        "bus",
        "an expired event is handled on RabbitMQ",
        "handle",
        "if bus.worker_backend.is_over(delivery):",
        "if False:",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "a call is begun after its caller has given up",
        "answer",
        "if time.time() >= delivery.deadline:",
        "if False:",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "on RabbitMQ an answer goes to any queue that a caller names",
        "RabbitWorker.delivery",
        'if not reply_to.startswith(f"{REPLY_TO}."):',
        "if not reply_to:",
        (f"{_REPLIES}[rabbitmq]",),
    ),
    Fault(
        "bus",
        "on Redis an answer goes to any key that a caller names",
        "RedisWorker.delivery",
        "if not _TOKEN.fullmatch(token):",
        "if not token:",
        (f"{_REPLIES}[redis]",),
    ),
    Fault(
        "bus",
        "an event that no queue took counts as published",
        "RabbitConnection.publish",
        "return not self.returned",
        "return True",
        _UNHEARD,
    ),
    Fault(
        "bus",
        "RabbitMQ is not asked to return what no queue takes",
        "RabbitConnection.publish",
        "mandatory=True",
        "mandatory=False",
        _UNHEARD,
    ),
    Fault(
        "bus",
        "an event that a full queue refused counts as published",
        "Confirms._on_nack",
        "self._end(entry, queue_full(entry.publishing.id))",
        "self._end(entry, None)",
        (f"{_BATCH}::TestOnRabbitMQ::test_an_event_that_a_full_queue_refuses_fails_alone",),
    ),
    Fault(
        "bus",
        "events whose confirms were lost with a connection count as published",
        "Confirms._lost",
        "        self._queue.extendleft(reversed(unconfirmed))\n",
        "        for entry in unconfirmed:\n            self._end(entry, None)\n",
        (f"{_BATCH}::TestFaults::test_connections_that_are_cut_lose_nothing[rabbitmq]",),
    ),
    Fault(
        "bus",
        "a batch reports only events that were lost with the broker, not those that nobody took",
        "Batch._gather",
        "            if isinstance(error, Exception):\n                self._failures",
        "            if isinstance(error, Unavailable | Unconfirmed):\n                self._failures",
        (f"{_BATCH}::TestBlocks::test_events_nobody_listens_to_are_kept_or_reported_by_id_and_topic[redis]",),
    ),
    Fault(
        "bus",
        "an event that could not be published stays in the journal as sent",
        "RabbitBroker.publish",
        "self.registry.not_sent(envelope, len(text))",
        "pass",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "the outbox removes a row although the broker did not take it",
        "Outbox.relay",
        "            for row in rows:\n                try:\n",
        "            for row in rows:\n                done.append(row.number)\n                try:\n",
        ("tests/bus/test_outbox.py",),
    ),
    Fault(
        "bus",
        "a misspelt option of publish is passed over",
        "_send_options",
        "    check_keywords(options, known, where)\n",
        "",
        _KEYWORDS,
    ),
    Fault(
        "bus",
        "events that found no queue while RabbitMQ started are left in events.unrouted",
        "RabbitWorker.connected",
        "if sent := forward_strays(self._pool.url):",
        "if sent := 0:",
        _STRAYS,
    ),
    Fault(
        "bus",
        "a stray whose queue is gone is thrown away",
        "forward_strays",
        "if not returned:",
        "if True:",
        _STRAYS,
    ),
    Fault(
        "bus",
        "a replay to a handler that is gone throws the event away",
        "RabbitDeadLetters.replay",
        "if returned:",
        "if False:",
        _DELIVERIES,
    ),
    Fault(
        "bus",
        "an adopted event is acknowledged at its old broker before the new one has it",
        "adopt",
        'adoption.known += not send(task, f"{word}.{handler}")\n'
        "                channel.basic_ack(message.delivery_tag)\n",
        "channel.basic_ack(message.delivery_tag)\n"
        '                adoption.known += not send(task, f"{word}.{handler}")\n',
        _ADOPTION,
    ),
)

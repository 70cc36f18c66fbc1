"""Faults planted in the Celery transport."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_TASKS, _WORKERS = "tests/celery/test_dead_letters.py::", "tests/celery/test_workers.py::"
_AWAY = ("tests/celery/test_broker_away.py",)
_VERDICTS = ("tests/celery/test_verdicts.py",)
_ORDER = ("tests/celery/test_kombu.py::TestOrder",)
_QUEUES = ("tests/celery/test_kombu.py::TestQueues",)
_BROADCASTS = ("tests/celery/test_kombu.py::TestBroadcasts",)
_DELAYS = ("tests/celery/test_faults.py::TestDelays",)
_LOST = ("tests/celery/test_faults.py::TestLostAnswers",)
_UNROUTABLE = ("tests/celery/test_unroutable.py",)
_OPTIONS = ("tests/celery/test_options.py",)
_TRANSIENT = ("tests/celery/test_transient_queues.py::TestConsumedQueues",)
_REPLIES = ("tests/celery/test_transient_queues.py::TestShortLivedClients",)
_INSPECT = ("tests/celery/test_transient_queues.py::TestInspectScheduled",)
_MIGRATION = ("tests/celery/test_migration.py",)
_PLUS = ("tests/celery/test_migration_plus.py",)
_DEAD = (f"{_TASKS}TestPools::test_a_task_that_failed_for_good_is_a_dead_letter_and_runs_again_by_replay[solo]",)
_LIMITS = (f"{_TASKS}TestCelerysOwnEnds::test_time_limits_end_as_dead_letters_and_the_worker_goes_on",)
_CHOICES = (f"{_TASKS}TestChoices::test_install_keeps_every_choice_of_the_app",)
_ETA = (f"{_TASKS}TestEta::test_a_worker_whose_clock_is_an_hour_behind_runs_a_due_task_at_once",)
_OUTAGES = (f"{_WORKERS}TestOutages::test_a_worker_goes_on_after_its_server_restarted",)
_CONSUMERS = (f"{_WORKERS}TestServices::test_a_worker_is_among_the_consumers",)

FAULTS: Final[tuple[Fault, ...]] = (
    # -- verdicts and leases
    Fault(
        "celery",
        "releases that fail are not repeated",
        "BrokerClient.release",
        "insist=True",
        "insist=False",
        _AWAY,
    ),
    Fault(
        "celery",
        "failed verdicts are not repeated",
        "BrokerClient._deliver_verdicts",
        "                failures += 1\n                if failures == 1:",
        "                return\n                if failures == 1:",
        _AWAY,
    ),
    Fault(
        "celery",
        "a connection that closes during an outage takes its unsent acks with it",
        "BrokerClient.close",
        " or self.holder.in_use",
        "",
        _AWAY,
    ),
    Fault(
        "celery",
        "leases are not renewed",
        "BrokerClient.receive",
        "self.holder.hold(queue, received.messages)",
        "pass",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "messages of a closed channel stay leased until their leases end",
        "Channel.close",
        "self.broker.release([message.leased for message in released])",
        "pass",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "messages that a cancelled consumer was not handed stay leased",
        "Channel._cancel",
        "self.broker.release([message.leased for message in unread if message.leased is not None])",
        "pass",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "running tasks are delivered to another worker when the connection is lost",
        "Channel.close",
        "message.leased is not None and id(message) not in running",
        "message.leased is not None",
        _OUTAGES,
    ),
    Fault(
        "celery",
        "an ack of several messages leaves out the last",
        "Channel._tags_up_to",
        "tags.index(delivery_tag) + 1",
        "tags.index(delivery_tag)",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "a message rejected with requeue is buried",
        "Channel.basic_reject",
        "elif requeue:",
        "elif False:",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "a message rejected without requeue is delivered again",
        "Channel.basic_reject",
        "elif requeue:",
        "elif True:",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "a message whose body cannot be read is acked and lost",
        "Channel.basic_ack",
        "if message.unreadable is not None:",
        "if False:",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "a native message that is not a valid Kombu message is acked and lost",
        "Channel._accept",
        "self.broker.holder.bury(leased, error=error)",
        "self.broker.holder.queue_ack(leased)",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "a second delivery is not marked as redelivered",
        "Message.__init__",
        "if leased.attempts > 1:",
        "if leased.attempts > 2:",
        _VERDICTS,
    ),
    Fault(
        "celery",
        "the delivery limit does not reach the queue",
        "Declarations._apply",
        '"x-dead-letter-exchange" in info.arguments else limit',
        "True else limit",
        _VERDICTS,
    ),
    # -- publishing and consuming
    Fault(
        "celery",
        "priorities are reversed",
        "Publisher._build",
        'priority=priority_of(properties.get("priority"), info.arguments.get("x-max-priority", 255))',
        'priority=255 - priority_of(properties.get("priority"), info.arguments.get("x-max-priority", 255))',
        _ORDER,
    ),
    Fault(
        "celery",
        "unacked messages do not count towards the prefetch limit",
        "Channel.room",
        "self.prefetch - len(self.held) - len(self.waiting)",
        "self.prefetch - len(self.waiting)",
        _ORDER,
    ),
    Fault("celery", "countdown and eta are ignored", "Publisher._build", "delay=delay,", "delay=0.0,", _DELAYS),
    Fault(
        "celery",
        "delays are cut to whole seconds, so tasks run early",
        "delay_of",
        ".total_seconds())",
        ".total_seconds() // 1)",
        _DELAYS,
    ),
    Fault("celery", "a worker waits for the eta by its own clock", "skip_eta", "request._eta = None", "pass", _ETA),
    Fault(
        "celery",
        "the queue's time to live counts before the message is due",
        "Channel._accept",
        "(waited + expires) * 1000",
        "expires * 1000",
        _DELAYS,
    ),
    Fault(
        "celery",
        "a message's own expiration counts only from when it is due",
        "Publisher.expires",
        "max(0.0, int(own) / 1000 - delay)",
        "int(own) / 1000",
        _DELAYS,
    ),
    Fault(
        "celery",
        "a publish that Kombu repeats gets a new id and is stored twice",
        "Channel.prepare_message",
        'if "restante_id" not in properties:',
        "if True:",
        _LOST,
    ),
    Fault(
        "celery",
        "a publish that Kombu repeats is sent without a check whether its id is stored",
        "Publisher._build",
        'properties.pop("restante_new", None)',
        'properties.get("restante_new", True)',
        _LOST,
    ),
    Fault(
        "celery",
        "a reconnected subscriber reads broadcasts a second time",
        "Channel._cancel",
        "if source.broadcasts.unsaved:",
        "if False:",
        _BROADCASTS,
    ),
    Fault(
        "celery",
        "a second binding skips the broadcasts that were not read yet",
        "start_at_end",
        '"HSETNX"',
        '"HSET"',
        _BROADCASTS,
    ),
    Fault(
        "celery",
        "a topic broadcast reaches subscribers of other topics",
        "BroadcastReader.read",
        'type == "topic" and not any',
        'type == "topic" and not patterns and not any',
        _BROADCASTS,
    ),
    # -- dead letters and messages without a bound queue
    Fault(
        "celery",
        "a dead letter without a bound queue is acked and lost",
        "Publisher.dead_letter",
        "if self.publish(copy, exchange, key):",
        "if self.publish(copy, exchange, key) or True:",
        _QUEUES,
    ),
    Fault(
        "celery",
        "a dead-letter exchange gets a message one delivery too early",
        "Channel._accept",
        "if leased.attempts > limit:",
        "if leased.attempts >= limit:",
        _QUEUES,
    ),
    Fault(
        "celery",
        "a message without a bound queue is dropped without a trace",
        "handle_unroutable",
        'channel.broker.dropped.add(exchange, routing_key, warn=options.unroutable == "warn")',
        "return",
        _UNROUTABLE,
    ),
    Fault(
        "celery",
        "a publish to an undeclared exchange succeeds",
        "handle_unroutable",
        "if not table.declared:",
        "if False:",
        _UNROUTABLE,
    ),
    Fault("celery", "mandatory is ignored", "handle_unroutable", "elif mandatory:", "elif False:", _UNROUTABLE),
    Fault(
        "celery", "failed tasks leave no dead letters", "bury_failures", "task.acks_on_failure = False", "pass", _DEAD
    ),
    Fault(
        "celery",
        "a dead letter has no traceback",
        "DeadLetters.on_failure",
        "str(exc_info.traceback)",
        "str(error)",
        _DEAD,
    ),
    Fault(
        "celery",
        "a task that exceeds its time limit leaves no dead letter",
        "DeadLetters.acknowledge",
        "if self._timed_out and",
        "if False and",
        _LIMITS,
    ),
    Fault(
        "celery",
        "install leaves Celery's own default, by which tasks are acked before they run",
        "_set_defaults",
        "{**DEFAULTS, _ACKS_ON_FAILURE: UNSET}",
        "{_ACKS_ON_FAILURE: UNSET}",
        _CHOICES,
    ),
    # -- transient queues, remote control, options
    Fault("celery", "a consumer never renews its queue", "TransientQueues._run", "self.run_once()", "pass", _TRANSIENT),
    Fault(
        "celery",
        "the renewal of queues ends at its first failure",
        "TransientQueues._run",
        'log.warning("queues not renewed error=%s", error)',
        'log.warning("queues not renewed error=%s", error)\n                return',
        _TRANSIENT,
    ),
    Fault(
        "celery",
        "the first of two consumers that leaves lets the other's queue expire",
        "TransientQueues.remove",
        "if not others:",
        "if True:",
        _TRANSIENT,
    ),
    Fault(
        "celery",
        "queues of replies to remote control are never removed",
        "Channel.after_reply_message_received",
        "self.queue_delete(queue)",
        "pass",
        _REPLIES,
    ),
    Fault(
        "celery",
        "inspect scheduled does not list delayed tasks on the broker",
        "extend_inspect",
        "[*original(state, **options), *delayed_tasks(state)]",
        "[*original(state, **options)]",
        _INSPECT,
    ),
    Fault(
        "celery",
        "workers are not among the consumers",
        "Consumers.start",
        "broker.process_info = orjson.dumps(",
        "_ = orjson.dumps(",
        _CONSUMERS,
    ),
    Fault(
        "celery",
        "after a failover a channel still uses the first server",
        "Transport.create_channel",
        "channel = connection.Channel(connection)",
        "channel = self.Channel(self)",
        _OPTIONS,
    ),
    Fault(
        "celery",
        "unknown transport options are ignored",
        "Options.parse",
        'check_keywords([name], [*known, *_WITHOUT_EFFECT, *_OF_KOMBU], "broker_transport_options")',
        "pass",
        _OPTIONS,
    ),
    Fault(
        "celery",
        "two applications on one server share queues despite their prefixes",
        "BrokerClient.full_name",
        'f"{self.options.global_keyprefix}{name}"',
        "name",
        _OPTIONS,
    ),
    # -- migration
    Fault(
        "celery",
        "migration removes before it has sent",
        "Migration.move",
        "if self._send(queue, raw, moved):\n                        self._source.lrem(aside, -1, raw)",
        "self._source.lrem(aside, -1, raw)\n"
        "                    if self._send(queue, raw, moved):\n                        pass",
        _MIGRATION,
    ),
    Fault(
        "celery",
        "migration of held messages removes before it has sent",
        "Migration.move_unacked",
        "            raw = json.dumps(message).encode()\n",
        "            raw = json.dumps(message).encode()\n"
        '            self._source.hdel(f"{self._prefix}unacked", tag)\n',
        _MIGRATION,
    ),
    Fault(
        "celery",
        "migration from celery-redis-plus removes before it has sent",
        "Migration._move_tags",
        "            payload, priority, eta = self._plus.read(tag)\n",
        "            payload, priority, eta = self._plus.read(tag)\n            self._plus.finish(tag, places)\n",
        _PLUS,
    ),
    Fault(
        "celery",
        "migration back deletes before it has put",
        "Migration.back",
        "                        message = admin.show(name, id)\n",
        "                        message = admin.show(name, id)\n                        admin.delete(name, [id])\n",
        _MIGRATION,
    ),
    Fault(
        "celery",
        "migration deletes messages that it cannot read",
        "Migration.move",
        'self._source.lmove(aside, f"{aside}:left", "RIGHT")',
        "self._source.rpop(aside)",
        _MIGRATION,
    ),
    Fault(
        "celery",
        "migration puts a held message into a queue named after its topic",
        "Migration._queues_of",
        "if key == routing_key or (pattern and re.match(pattern, routing_key)):",
        "if key == routing_key:",
        _MIGRATION,
    ),
    Fault(
        "celery",
        "migration does not invert priorities where asked to",
        "Migration._send",
        "elif self._invert:",
        "elif False:",
        _MIGRATION,
    ),
    Fault(
        "celery",
        "migration from celery-redis-plus reverses priorities",
        "Migration._send",
        'properties["priority"] = priority',
        'properties["priority"] = 255 - priority',
        _PLUS,
    ),
    Fault(
        "celery",
        "migration back to celery-redis-plus reverses priorities",
        "CeleryRedisPlus.put",
        "(255 - priority) * SPAN",
        "priority * SPAN",
        _PLUS,
    ),
    Fault(
        "celery",
        "migration back leaves delayed messages behind",
        "Migration.back",
        "(State.READY, State.RETRYING, State.SCHEDULED)",
        "(State.READY, State.RETRYING)",
        _PLUS,
    ),
)

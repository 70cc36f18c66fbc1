"""Faults planted in RabbitMQ's topology."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_TOPOLOGY = ("tests/rabbitmq/test_topology.py",)
_DECLARATION = ("tests/rabbitmq/test_declaration.py",)
_TAKEOVER = "tests/rabbitmq/test_takeover.py"

FAULTS: Final = (
    Fault(
        "rabbitmq",
        "the ladder lacks its shortest rung, so odd delays lead nowhere",
        "rungs",
        "reversed(range(max(1,",
        "reversed(range(1, max(1,",
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "the bits of a delay are written in the wrong order, so events come at other times",
        "Ladder._climb",
        '[::-1] if ticks else ""',
        ' if ticks else ""',
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq", "delays are rounded down, so events come early", "_ticks", "math.ceil(", "math.floor(", _TOPOLOGY
    ),
    Fault(
        "rabbitmq",
        "a delay just beyond the ladder goes to a rung that is not there",
        "Ladder._climb",
        "ticks >= 2 ** len(self.steps)",
        "ticks > 2 ** len(self.steps)",
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "a queue that differs from what the service needs is not noticed",
        "Channels.declare",
        "return self._explanation(item, error)",
        "return None",
        _DECLARATION,
    ),
    Fault(
        "rabbitmq",
        "the password of the broker is in the error",
        "Channels._as_unavailable",
        "refuses the login of {self._user()}:",
        "refuses the login of {self._connection.as_uri(include_password=True)}:",
        _DECLARATION,
    ),
    Fault(
        "rabbitmq",
        "the archive has no bound",
        "topology",
        "            x_max_length=options.archive_length,\n",
        "",
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "a full archive drops its oldest events instead of refusing",
        "topology",
        'x_overflow="reject-publish"',
        'x_overflow="drop-head"',
        (*_TOPOLOGY, "tests/rabbitmq/test_declaration.py::test_a_full_archive_refuses_and_keeps_what_it_has"),
    ),
    Fault(
        "rabbitmq",
        "the gate outlives a restart, so due events pass before the bindings are known",
        "_add_gate",
        "durable=False",
        "durable=True",
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "the gate is opened before it leads anywhere",
        "_add_gate",
        '    builder.bind(GATE, "", DUE, to_exchange=True)\n'
        '    builder.bind(RETURN, f"#.{TO_TOPIC}.#", GATE, to_exchange=True)\n',
        '    builder.bind(RETURN, f"#.{TO_TOPIC}.#", GATE, to_exchange=True)\n'
        '    builder.bind(GATE, "", DUE, to_exchange=True)\n',
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "rungs move messages without confirms",
        "rung_arguments",
        '        "x-dead-letter-strategy": "at-least-once",\n',
        "",
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "an event published with a delay never reaches its subscription",
        "_add_subscription",
        '    builder.bind(DUE, f"#.{TO_TOPIC}.{pattern}", queue)\n',
        "",
        _TOPOLOGY,
    ),
    Fault(
        "rabbitmq",
        "a service that changes the type of its rungs gets what it rejects twice",
        "_declare_all",
        "broker.unbind(item)",
        "pass",
        (f"{_TAKEOVER}::test_a_service_may_change_the_type_of_its_rungs_and_gets_each_message_once",),
    ),
    Fault(
        "rabbitmq",
        "an old rung is taken apart while messages wait on it",
        "_clear",
        "        if queue is not None and queue.messages:\n            return gone\n",
        "",
        (f"{_TAKEOVER}::test_old_rungs_are_kept_while_they_hold_messages_and_removed_once_empty",),
    ),
)

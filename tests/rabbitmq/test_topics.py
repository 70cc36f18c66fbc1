"""Patterns mean the same to our matcher as to RabbitMQ."""

from __future__ import annotations

import time

import amqp
import pytest
from kombu import Connection

from restante.core.topics import matches, matches_words
from tests.harness.deadlines import took_at_most
from tests.harness.topic_cases import CASES, HEAVY_CASES


@pytest.mark.parametrize(("pattern", "topic", "fits"), CASES + HEAVY_CASES, ids=lambda value: str(value)[:30])
def test_our_matcher_agrees_with_the_table(pattern: str, topic: str, fits: bool) -> None:
    assert matches(pattern, topic) is fits


def test_rabbitmq_agrees_with_the_table_and_with_our_matcher_beyond_it(connection: Connection) -> None:
    patterns = sorted({pattern for pattern, _, _ in CASES})
    topics = sorted({topic for _, topic, _ in CASES})
    channel = connection.channel()
    channel.exchange_declare("cases", "topic", durable=False, auto_delete=True)
    queues = {}
    for pattern in patterns:
        queues[pattern] = channel.queue_declare("", exclusive=True).queue
        channel.queue_bind(queues[pattern], "cases", pattern)
    for topic in topics:
        channel.basic_publish_confirm(amqp.Message(topic), "cases", topic)
    got: dict[str, set[str]] = {}
    for pattern, queue in queues.items():
        got[pattern] = set()
        while (message := channel.basic_get(queue, no_ack=True)) is not None:
            got[pattern].add(message.body)
    assert [case for case in CASES if (case[1] in got[case[0]]) is not case[2]] == []
    assert got == {pattern: {topic for topic in topics if matches(pattern, topic)} for pattern in patterns}


@pytest.mark.parametrize(
    "pattern",
    [["#"] * 10_000, ["#", "a"] * 90, ["#", *["a"] * 89, "b"], ["*", "#"] * 90, ["#", "a", "*"] * 60 + ["b"]],
    ids=["hashes", "pairs", "almost", "stars", "mixed"],
)
@pytest.mark.timed
def test_ten_thousand_words_are_matched_within_a_second(pattern: list[str]) -> None:
    begun = time.process_time()
    matches_words(pattern, ["a"] * 10_000)
    took_at_most(time.process_time() - begun, 1)

"""A consumer's lease journal on every room: a batch reads the same until it is cleared, whatever was settled."""

from __future__ import annotations

import pytest

import restante
from restante import Client, InUse
from restante.core.lease_journal import LeaseJournal, Settlement
from tests.contract.rooms import Room, fresh_name, needs

pytestmark = needs("tokens", "admin")


def consumer(room: Room, name: str) -> Client:
    """A client of its own under this name; a lease journal is synchronous on every room."""
    post = restante.connect(room.plain.url, consumer=name)
    room._opened.append(post)
    return post


def verdict(rows: dict[int, tuple[str, str]], delay_ms: int | None = 0) -> list[Settlement]:
    return [Settlement(id, token, delay_ms, "E", b'"no"') for id, token in rows.values()]


async def test_a_batch_is_claimed_renewed_settled_and_cleared(room: Room) -> None:
    queue = room.queue(max_attempts=9)
    room.queue()  # a cluster's other nodes have something to do too
    await room.call(queue.send_many, list(range(10)))
    journal = LeaseJournal(consumer(room, "spark"), queue.name, "driver")
    assert journal.ready() == 10
    last, claimed = journal.claim(8, lease=30, lasts=60)
    assert (last, list(claimed)) == (8, [*range(1, 9)])
    assert journal.renew(list(claimed.values()), 60) == set()
    before = [(row.number, row.id, row.token, row.stored.payload) for row in journal.rows(0, last)]
    pairs = list(claimed.items())
    for word, part in (("ack", pairs[:2]), ("nack", pairs[2:4]), ("bury", pairs[4:6]), ("release", pairs[6:])):
        assert journal.settle(word, verdict(dict(part))) == []
    assert room.states(queue) == {"ready": 4, "retrying": 2, "dead": 2}
    again = LeaseJournal(consumer(room, "spark"), queue.name)
    assert [(row.number, row.id, row.token, row.stored.payload) for row in again.rows(0, last)] == before
    words = ["ack"] * 2 + ["nack"] * 2 + ["bury"] * 2 + ["release"] * 2
    assert again.verdicts([token for _, token in claimed.values()]) == dict(
        zip((token for _, token in claimed.values()), words, strict=True)
    )
    journal.clear(last)
    assert list(journal.rows(0, last)) == []
    assert set(journal.settle("nack", verdict(claimed))) == {token for _, token in claimed.values()}
    assert journal.verdicts([token for _, token in claimed.values()]) == {}
    assert journal.claim(100, lease=30, lasts=60)[0] == 8 + 6


async def test_one_process_at_a_time_claims_for_a_consumer(room: Room) -> None:
    queue = room.queue()
    await room.call(queue.send_many, [1, 2])
    first = LeaseJournal(consumer(room, "spark"), queue.name, "one")
    second = LeaseJournal(consumer(room, "spark"), queue.name, "two")
    assert first.claim(1, lease=30, lasts=0.5)[0] == 1
    with pytest.raises(InUse, match="alive elsewhere"):
        second.claim(1, lease=30, lasts=0.5)
    assert room.states(queue) == {"ready": 1, "leased": 1}
    await room.pass_time(0.5)
    assert second.claim(1, lease=30, lasts=60)[0] == 2
    with pytest.raises(InUse):
        first.own(60)


async def test_a_dropped_queue_takes_its_lease_journals_along(room: Room) -> None:
    name = fresh_name("dropped")
    queue = room.queue(name)
    await room.call(queue.send_many, [1, 2])
    journals = [LeaseJournal(consumer(room, who), name, "driver") for who in ("spark", "host:17")]
    for journal in journals:
        _, claimed = journal.claim(1, lease=30, lasts=60)
        journal.settle("ack", verdict(claimed))
    room.admin.drop(name)
    for journal in journals:
        assert journal.first() is None
        assert journal.last() == 0
        for key in (journal._leases, journal._verdicts):
            assert room.plain.connection.command("EXISTS", key, key=key) == 0

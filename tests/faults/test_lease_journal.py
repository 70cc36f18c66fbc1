"""Lost answers and planted keys under a lease journal: every lease has one row and one verdict, or a typed error."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

import pytest

import restante
from restante import Admin, Client, Corrupt
from restante.core import lease_journal, operations
from restante.core.lease_journal import VERDICTS, LeaseJournal, Settlement
from restante.core.scripts import Script
from tests.faults.rows import missing, verdict
from tests.harness.proxy import FaultProxy
from tests.harness.servers import RedisServer, call

SETTLERS = {"ack": operations.ACK, "nack": operations.NACK, "bury": operations.BURY, "release": operations.RELEASE}
LEASE, LASTS = 60.0, 60.0


@pytest.fixture
def through(proxy: FaultProxy) -> Iterator[Client]:
    """A client behind the proxy."""
    with restante.connect(proxy.url, consumer="spark") as opened:
        yield opened


def cut(proxy: FaultProxy, script: Script, times: int) -> None:
    """The next answers of one script are lost; the others come through."""
    proxy.cut_before_reply(times, matching=lambda request: script.sha in request)


@pytest.mark.parametrize("times", [1, 3])
def test_a_claim_whose_reply_is_lost_makes_one_row_per_lease(
    proxy: FaultProxy, through: Client, post: Client, name: str, times: int
) -> None:
    sent = post.queue(name).send_many(list(range(20)))
    journal = LeaseJournal(through, name, "driver")
    journal.own(LASTS)
    proxy.cut_before_reply(times, matching=lambda request: _holds(request, sent))
    last, claimed = journal.claim(20, lease=LEASE, lasts=LASTS)
    assert proxy.counters.cut == times
    rows = [row.id for row in journal.rows(0, last)]
    assert [id for id, _ in claimed.values()] == rows
    verdict("10e", n=20, lost=missing(sent, rows), dup=len(rows) - len(set(rows)), times=times)


def _holds(request: bytes, ids: Sequence[str]) -> bool:
    """Whether it copies leases, rather than renewing the ownership alone."""
    return lease_journal.HOLD.sha in request and any(id.encode() in request for id in ids)


@pytest.mark.parametrize("word", VERDICTS)
def test_a_verdict_whose_reply_is_lost_is_carried_out_once_and_remembered(
    proxy: FaultProxy, through: Client, post: Client, view: Admin, name: str, word: str
) -> None:
    post.queue(name).send_many(list(range(5)))
    journal = LeaseJournal(through, name, "driver")
    last, claimed = journal.claim(5, lease=LEASE, lasts=LASTS)
    cut(proxy, SETTLERS[word], 2)
    lost = journal.settle(word, [Settlement(id, token, 0, "E", b'"no"') for id, token in claimed.values()])
    assert proxy.counters.cut == 2
    tokens = [token for _, token in claimed.values()]
    assert journal.verdicts(tokens) == dict.fromkeys(tokens, word)
    told = {"ack": "acked", "nack": "nacked", "bury": "buried", "release": "released"}[word]
    assert view.counts(name).totals[told] == 5
    assert [row.token for row in journal.rows(0, last)] == tokens
    verdict("10f", n=5, lost=len(lost), verdict_given=word)


def test_a_clear_whose_reply_is_lost_is_done(proxy: FaultProxy, through: Client, post: Client, name: str) -> None:
    journal = LeaseJournal(through, name, "driver")
    for number in range(3):
        post.queue(name).send(number)
        journal.claim(1, lease=LEASE, lasts=LASTS)
    cut(proxy, lease_journal.CLEAR, 3)
    journal.clear(2)
    assert [row.number for row in journal.rows(0, 9)] == [3]


@pytest.mark.parametrize("key", ["leases", "verdicts"])
def test_a_lease_journal_s_key_of_the_wrong_type_is_named(server: RedisServer, name: str, key: str) -> None:
    with restante.connect(server.url, patience=1, consumer="host:17") as post:
        post.queue(name).send_many([1, 2])
        journal = LeaseJournal(post, name, "driver")
        _, claimed = journal.claim(1, lease=LEASE, lasts=LASTS)
        [(id, token)] = claimed.values()
        planted = f"restante:{{{name}}}:{key}:host:17"
        call(server.client(), "DEL", planted)
        call(server.client(), "SET", planted, "planted")
        acts: list[Callable[[], object]] = [
            lambda: journal.claim(1, lease=LEASE, lasts=LASTS),
            lambda: list(journal.rows(0, 9)),
            lambda: journal.clear(9),
        ]
        if key == "verdicts":
            acts = [lambda: journal.settle("ack", [Settlement(id, token, 0, "", b'""')])]
        for act in acts:
            with pytest.raises(Corrupt, match=re.escape(planted)):
                act()
        call(server.client(), "DEL", planted)
        # What was leased is settled, or comes again when its lease ends.
        counts = Admin(post).counts(name)
        verdict(39, n=2, lost=2 - counts.waiting - counts.totals["acked"], key=key)

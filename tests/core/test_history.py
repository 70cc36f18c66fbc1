"""The history checker: a run with eight threads is clean, and every kind of violation is seen when there is one."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from restante.core.admin import Admin
from restante.core.errors import LeaseLost
from restante.core.queue import Client, LeasedMessage, Queue
from restante.core.settings import ClientSettings
from tests.core.contents import STATES, dump
from tests.core.history import Delivered, History, Line, Sent, Settled, check, lines_of
from tests.harness.servers import RedisServer

#: Messages of the run, and threads on each side.
MESSAGES, PRODUCERS, CONSUMERS = 5000, 3, 5
MAX_ATTEMPTS = 4


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer() as running:
        yield running


class Run:
    """Producers and consumers on one queue, and what each saw."""

    def __init__(self, post: Client) -> None:
        self.queue: Queue = post.queue("run", max_attempts=MAX_ATTEMPTS, lease=10)
        self.admin = Admin(post, operator="op")
        self.history = History("concurrent", max_attempts=MAX_ATTEMPTS)
        self.producing = threading.Event()
        self.producing.set()

    def produce(self, seed: int) -> None:
        chance = random.Random(seed)
        for at in range(0, MESSAGES // PRODUCERS + 1, 20):
            payloads = [{"from": seed, "at": at + step} for step in range(20)]
            options: dict[str, Any] = {"priority": chance.choice((0, 0, 7, 255))}
            due = 0
            if chance.random() < 0.1:
                options["delay"] = chance.choice((0.001, 0.05, 0.3))
            elif chance.random() < 0.1:
                # The server is on this machine, so its clock is ours.
                due = time.time_ns() // 1_000_000 + chance.choice((1, 50, 300))
                options["due_at"] = datetime.fromtimestamp(due / 1000, UTC)
            ids = self.queue.send_many(payloads, **options)
            self.history.sent += [Sent(id, payload, due) for id, payload in zip(ids, payloads, strict=True)]

    def consume(self, seed: int) -> None:
        chance = random.Random(seed)
        riding: list[LeasedMessage] = []
        idle = 0
        while self.producing.is_set() or idle < 3:
            quick = chance.random() < 0.1
            lease = 0.02 if quick else 10.0
            acks, riding = riding, []
            got = self.queue.receive_many(chance.choice((1, 5, 50)), timeout=0.2, lease=lease, acks=acks)
            idle = 0 if got else idle + 1
            self.history.delivered += [self._seen(message, seed) for message in got]
            if quick:
                continue  # a consumer that died: the leases run out, and verdicts come too late or not at all
            for message in got:
                luck = chance.random()
                if luck < 0.6:
                    riding.append(message)
                elif luck < 0.8:
                    self._judge(message, "ack", message.ack)
                elif luck < 0.9:
                    self._judge(message, "nack", functools.partial(message.nack, delay=chance.choice((0, 0.02))))
                elif luck < 0.95:
                    self._judge(message, "release", message.release)
                elif luck < 0.98:
                    self._judge(message, "extend", message.extend)
                    self._judge(message, "ack", message.ack)
                else:
                    self._judge(message, "ack", message.ack)
                    self._judge(replace_token(message), "nack", replace_token(message).nack)

    def operate(self, seed: int) -> None:
        """An operator who takes messages back and gives some up, whoever holds them."""
        chance = random.Random(seed)
        while self.producing.is_set():
            ids = [sent.id for sent in chance.sample(self.history.sent, min(5, len(self.history.sent)))]
            if ids:
                self.admin.revoke("run", ids)
                self.admin.cancel("run", ids[:1])
            time.sleep(0.005)

    def _seen(self, message: LeasedMessage, seed: int) -> Delivered:
        assert message.received_at is not None
        at = round(message.received_at.timestamp() * 1000)
        return Delivered(message.id, message.lease_token, message.attempts, message.payload, at, str(seed))

    def _judge(self, message: LeasedMessage, verb: str, act: Callable[[], object]) -> None:
        try:
            act()
            accepted = True
        except LeaseLost:
            accepted = False
        self.history.settled.append(Settled(message.id, message.lease_token, verb, accepted))


def replace_token(message: LeasedMessage) -> LeasedMessage:
    """The same message under a token that was never given."""
    message.lease_token = f"{message.lease_token}0"
    return message


def test_a_run_of_eight_threads_with_failures_and_lost_leases_is_clean(server: RedisServer) -> None:
    with Client(server.url, ClientSettings()) as post:
        run = Run(post)
        with ThreadPoolExecutor(PRODUCERS + CONSUMERS + 1) as pool:
            producers = [pool.submit(run.produce, seed) for seed in range(PRODUCERS)]
            consumers = [pool.submit(run.consume, 100 + seed) for seed in range(CONSUMERS)]
            operator = pool.submit(run.operate, 200)
            for task in producers:
                task.result()
            run.producing.clear()
            operator.result()
            for task in consumers:
                task.result()
        found = dump(server.client(), "run")
    history = run.history
    history.lines = lines_of(found["journal"])
    history.remaining = {id: state for state in STATES for id in found.get(state, {})}
    verdict = check(history)
    print(verdict.as_json())
    assert verdict.ok, verdict.violations
    assert verdict.n >= MESSAGES
    # The run was worth something: leases ran out, messages came again, and late verdicts were refused.
    assert verdict.dup > 100
    assert verdict.max_recovery_s > 0
    assert any(not settled.accepted for settled in history.settled)
    assert {"revoked", "cancelled"} <= {line.event for line in history.lines}


# -- planted violations --------------------------------------------------------------------------------------------


def clean() -> History:
    """Two messages: one fails and is retried, one is acked at once; a third waits for its time, a fourth is dead."""
    lines = [
        Line(1, "sent", "ready", 1000, "a"),
        Line(2, "sent", "ready", 1000, "b"),
        Line(3, "sent", "scheduled", 1000, "c", priority=9, due=1500),
        Line(4, "received", "leased", 1010, "a", attempts=1, due=2000),
        Line(5, "received", "leased", 1010, "b", attempts=1, due=2000),
        Line(6, "acked", "gone", 1020, "b", attempts=1),
        Line(7, "nacked", "retrying", 1020, "a", attempts=1, due=1400),
        Line(8, "promoted", "ready", 1500, "c", priority=9),
        Line(9, "promoted", "ready", 1500, "a", attempts=1),
        Line(10, "received", "leased", 1500, "c", priority=9, attempts=1, due=2500),
        Line(11, "received", "leased", 1500, "a", attempts=2, due=2500),
        Line(12, "extended", "leased", 2400, "c", priority=9, attempts=1, due=3500),
        Line(13, "expired", "dead", 2600, "a", attempts=2),
        Line(14, "acked", "gone", 3000, "c", priority=9, attempts=1),
        Line(15, "sent", "ready", 3000, "d"),
        Line(16, "received", "leased", 3000, "d", attempts=1, due=4000),
        Line(17, "released", "ready", 3100, "d", attempts=0),
        Line(18, "received", "leased", 3100, "d", attempts=1, due=4100),
        Line(19, "acked", "gone", 3200, "d", attempts=1),
        Line(20, "sent", "ready", 3300, "e"),
        Line(21, "received", "leased", 3300, "e", attempts=1, due=4300),
        Line(22, "revoked", "ready", 3400, "e", attempts=1, detail="host:1"),
        Line(23, "received", "leased", 3400, "e", attempts=2, due=4400),
        Line(24, "cancelled", "gone", 3500, "e", attempts=2, detail="leased"),
    ]
    return History(
        "planted",
        lines,
        [Sent("a", 1), Sent("b", 2), Sent("c", 3, due=1500), Sent("d", 4), Sent("e", 5)],
        [
            Delivered("a", "4-n", 1, 1, 1010),
            Delivered("b", "5-n", 1, 2, 1010),
            Delivered("c", "10-n", 1, 3, 1500),
            Delivered("a", "11-n", 2, 1, 1500),
            Delivered("d", "16-n", 1, 4, 3000),
            Delivered("d", "18-n", 1, 4, 3100),
            Delivered("e", "21-n", 1, 5, 3300),
            Delivered("e", "23-n", 2, 5, 3400),
        ],
        [
            Settled("b", "5-n", "ack", True),
            Settled("a", "4-n", "nack", True),
            Settled("a", "4-n", "ack", False),
            Settled("c", "10-n", "extend", True),
            Settled("c", "10-n", "ack", True),
            Settled("a", "11-n", "ack", False),
            Settled("d", "16-n", "release", True),
            Settled("d", "18-n", "ack", True),
            Settled("e", "21-n", "ack", False),
        ],
        {"a": "dead"},
        max_attempts=2,
    )


def line(history: History, number: int, **changed: Any) -> None:
    history.lines[number - 1] = replace(history.lines[number - 1], **changed)


def renumber(history: History) -> None:
    """For corruptions of more than one line: numbers without gaps, so that only the planted fault is seen."""
    history.lines = [replace(old, number=number) for number, old in enumerate(history.lines, 1)]
    history.delivered = []
    history.settled = []


def _lose(history: History) -> None:
    history.remaining = {}


def _lose_confirmed(history: History) -> None:
    history.sent.append(Sent("f", 6))


def _phantom_delivery(history: History) -> None:
    history.delivered.append(Delivered("ghost", "4-n", 1, 1, 1010))


def _phantom_after_ack(history: History) -> None:
    history.lines.append(Line(25, "received", "leased", 3600, "b", attempts=2, due=9000))


def _stored_twice(history: History) -> None:
    history.lines.insert(2, Line(3, "sent", "ready", 1000, "b"))
    renumber(history)


def _payload(history: History) -> None:
    history.delivered[0] = replace(history.delivered[0], payload=2)


def _overlap(history: History) -> None:
    history.lines.insert(5, Line(6, "received", "leased", 1015, "a", attempts=2, due=2000))
    renumber(history)


def _reclaimed_early(history: History) -> None:
    line(history, 13, at=2450)


def _one_token_twice(history: History) -> None:
    history.delivered.append(history.delivered[0])


def _stale_ack(history: History) -> None:
    history.settled[2] = replace(history.settled[2], accepted=True)


def _forged_ack(history: History) -> None:
    history.settled.append(Settled("a", "99-n", "ack", True))


def _late_ack(history: History) -> None:
    line(history, 6, at=2000)


def _late_extend(history: History) -> None:
    line(history, 12, at=2500)


def _extend_of_nothing(history: History) -> None:
    history.settled.append(Settled("d", "18-n", "extend", True))


def _priority(history: History) -> None:
    history.lines[9], history.lines[10] = replace(history.lines[10], number=10), replace(history.lines[9], number=11)
    renumber(history)


def _fifo(history: History) -> None:
    history.lines[3], history.lines[4] = replace(history.lines[4], number=4), replace(history.lines[3], number=5)
    renumber(history)


def _promoted_early(history: History) -> None:
    line(history, 8, at=1499)


def _received_unpromoted(history: History) -> None:
    line(history, 8, event="configured", id="")


def _delivered_early(history: History) -> None:
    history.delivered[2] = replace(history.delivered[2], at=1499)


def _attempts(history: History) -> None:
    line(history, 11, attempts=1)


def _attempts_seen(history: History) -> None:
    history.delivered[3] = replace(history.delivered[3], attempts=1)


def _release_counted(history: History) -> None:
    line(history, 17, attempts=1)


def _goes_on(history: History) -> None:
    line(history, 13, state="ready")
    history.remaining = {"a": "ready"}
    history.drained = False


def _dead_twice(history: History) -> None:
    history.lines.insert(13, Line(14, "buried", "dead", 2700, "a", attempts=2))
    renumber(history)


def _dead_too_soon(history: History) -> None:
    history.max_attempts = 3


def _conservation(history: History) -> None:
    history.remaining = {"a": "retrying"}


def _not_empty(history: History) -> None:
    line(history, 13, state="ready")
    history.remaining = {"a": "ready"}


def _revoked_from_nobody(history: History) -> None:
    history.lines.insert(18, Line(19, "revoked", "ready", 3150, "a", attempts=2))
    renumber(history)


def _revoke_uncounted(history: History) -> None:
    line(history, 22, attempts=0)


def _revoked_token_accepted(history: History) -> None:
    history.settled[-1] = replace(history.settled[-1], accepted=True)


def _cancelled_and_delivered(history: History) -> None:
    history.lines.append(Line(25, "received", "leased", 3600, "e", attempts=3, due=9000))


def _cancelled_what_is_dead(history: History) -> None:
    history.lines.append(Line(25, "cancelled", "gone", 3600, "a", attempts=2, detail="dead"))
    history.remaining = {}


def _cancelled_as_another(history: History) -> None:
    line(history, 24, detail="ready")


def _gap(history: History) -> None:
    del history.lines[11]


CORRUPTIONS: tuple[tuple[str, Callable[[History], None]], ...] = (
    ("lost", _lose),
    ("lost", _lose_confirmed),
    ("phantom", _phantom_delivery),
    ("phantom", _phantom_after_ack),
    ("phantom", _stored_twice),
    ("payload", _payload),
    ("overlap", _overlap),
    ("overlap", _reclaimed_early),
    ("overlap", _one_token_twice),
    ("fencing", _stale_ack),
    ("fencing", _forged_ack),
    ("fencing", _late_ack),
    ("fencing", _late_extend),
    ("fencing", _extend_of_nothing),
    ("priority", _priority),
    ("fifo", _fifo),
    ("early", _promoted_early),
    ("early", _received_unpromoted),
    ("early", _delivered_early),
    ("attempts", _attempts),
    ("attempts", _attempts_seen),
    ("attempts", _release_counted),
    ("attempts", _goes_on),
    ("attempts", _dead_too_soon),
    ("dead_twice", _dead_twice),
    ("conservation", _conservation),
    ("not_empty", _not_empty),
    ("fencing", _revoked_from_nobody),
    ("attempts", _revoke_uncounted),
    ("fencing", _revoked_token_accepted),
    ("phantom", _cancelled_and_delivered),
    ("fencing", _cancelled_what_is_dead),
    ("conservation", _cancelled_as_another),
    ("gaps", _gap),
)


def test_a_clean_history_is_found_clean() -> None:
    verdict = check(clean())
    assert verdict.violations == {}
    assert verdict.as_json() == (
        '{"row": "planted", "n": 5, "lost": 0, "dup": 3, "early": 0, "max_recovery_s": 0.1, "verdict": "pass"}'
    )


@pytest.mark.parametrize(
    ("kind", "corrupt"), CORRUPTIONS, ids=[f"{kind}-{corrupt.__name__.strip('_')}" for kind, corrupt in CORRUPTIONS]
)
def test_a_corrupted_history_is_caught_as_what_it_is(kind: str, corrupt: Callable[[History], None]) -> None:
    history = clean()
    corrupt(history)
    verdict = check(history)
    assert kind in verdict.violations
    assert '"verdict": "fail"' in verdict.as_json()


def test_an_unconfirmed_send_may_be_stored_or_not() -> None:
    history = clean()
    history.sent += [Sent("maybe", 0, confirmed=False)]
    history.sent[0] = replace(history.sent[0], confirmed=False)
    assert check(history).ok


def test_what_a_purge_removed_is_not_lost_and_what_it_did_not_is() -> None:
    history = clean()
    history.lines.append(Line(25, "purged", "gone", 4000, "a", detail="dead"))
    history.remaining = {}
    assert check(history).ok
    del history.lines[-1]
    assert check(history).violations.keys() == {"lost", "conservation"}


@pytest.mark.parametrize("event", ["purged", "deleted"])
def test_an_end_that_names_another_state_than_the_message_was_in_is_seen(event: str) -> None:
    history = clean()
    history.lines.append(Line(25, event, "gone", 4000, "a", detail="ready, why"))
    history.remaining = {}
    assert check(history).violations.keys() == {"conservation"}
    history.lines[-1] = replace(history.lines[-1], detail="dead, why")
    assert check(history).ok

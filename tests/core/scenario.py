"""One fixed sequence of verbs that touches every rule of the queue: a story with a point in each step, then a walk.

It is much faster than the search of the state machine, and it is the same on every run, so it can be repeated for
every mutant.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.core.paired import Pair
from tests.core.verbs import OWNER, RIVAL, Item, Tick

#: Steps of the walk; fewer leave rare orders of verbs untried.
WALK = 400


def play(pair: Pair) -> None:
    """The whole scenario; raises Disagreement where the queue is wrong."""
    for chapter in (
        _order,
        _tokens,
        _expiry,
        _attempts,
        _giving_back,
        _waiting,
        _unique_keys,
        _repeats,
        _limits,
        _operators,
        _results,
        _two_queues,
        _levels,
        _payloads,
        _lease_journal,
        _control,
        _schedules,
    ):
        chapter(pair)
    _walk(pair, random.Random(7), WALK)
    pair.check_anew()


def _order(pair: Pair) -> None:
    pair.send(*(Item(f"o{at}", priority=priority) for at, priority in enumerate((0, 5, 0, 255, 5, 1))), careful=False)
    pair.send(Item("o9", priority=5), careful=False)
    for _ in range(3):
        pair.receive(1)
    pair.ack(*pair.receive(9), *pair.tokens_in_hand())


def _tokens(pair: Pair) -> None:
    pair.send(Item("t1"), Item("t2"))
    (first,) = pair.receive(1)
    forged = (first[0], "9999-n")
    for verb in (pair.ack, pair.nack, pair.bury, pair.release, pair.extend):
        verb(forged)
        verb((first[0], ""))
        verb((first[0], "-"))
    pair.nack(first)
    second, other = pair.receive(2)
    for verb in (pair.ack, pair.nack, pair.bury, pair.release, pair.extend):
        verb(first if first[0] == second[0] else forged)
    pair.ack(second)
    pair.ack(second, other)
    pair.send(Item("t3"), Item("t4"))
    third, fourth = pair.receive(2)
    # Each token is judged by itself, also where another settles the same message in the same call.
    pair.ack(third, (third[0], "9999-n"), third)
    pair.receive(1, acks=[(fourth[0], "9999-n"), fourth, (fourth[0], "")])


def _expiry(pair: Pair) -> None:
    pair.send(Item("e1"), Item("e2", lease_ms=1000), Item("e3", lease_ms=1000, priority=7), Item("e4"))
    held = dict(pair.receive(4))
    one, two, three, four = ((id, held[id]) for id in ("e1", "e2", "e3", "e4"))
    pair.extend(three, lease_ms=2000)
    pair.advance(999)
    pair.receive(1)
    pair.advance(1)
    for verb in (pair.extend, pair.release, pair.bury, pair.nack, pair.ack):
        verb(two)
    pair.receive(0)
    # Reclaimed and not held again: its mark is no token.
    for verb in (pair.extend, pair.release, pair.bury, pair.nack, pair.ack):
        verb((two[0], "-"))
    pair.receive(1, acks=[two, three, one])
    pair.advance(29_000)
    pair.receive(1, acks=[four])
    pair.advance(600_000)
    pair.ack(*pair.receive(5))


def _attempts(pair: Pair) -> None:
    pair.configure(max_attempts=2)
    pair.send(Item("a1"), Item("a2"), Item("a3", max_attempts=1), Item("a4", max_attempts=3))
    pair.nack(*pair.receive(2))
    pair.receive(9, lease_ms=100)
    pair.advance(100)
    pair.receive(9, lease_ms=100)
    pair.advance(100)
    pair.receive(9)
    pair.nack(*pair.tokens_in_hand(), delay="dead")
    pair.replay("a1", "a4", "nobody")
    pair.bury(*pair.receive(1))
    pair.nack(*pair.receive(1), delay=50)
    pair.replay("a1", "a2", "a3")
    pair.configure(max_attempts=5)
    pair.advance(50)
    pair.ack(*pair.receive(9))


def _giving_back(pair: Pair) -> None:
    pair.send(Item("g1"), Item("g2"), Item("g3", priority=3))
    held = pair.receive(3)
    pair.release(held[1], held[2])
    pair.release(held[0], delay=500)
    pair.receive(1)
    pair.advance(500)
    pair.receive(5)
    pair.ack(*pair.tokens_in_hand())


def _waiting(pair: Pair) -> None:
    pair.send(Item("w1", due="+60000"), Item("w2", due="+4000", priority=9), Item("w3", due=f"{pair.now + 1000}"))
    pair.receive(1)
    pair.advance(999)
    pair.receive(1)
    pair.advance(1)
    pair.receive(1)
    pair.nack(*pair.tokens_in_hand(), delay=10)
    pair.advance(10)
    pair.receive(1)
    pair.ack(*pair.tokens_in_hand())
    pair.edit(Item("w1", b"edited", 200), delay=100)
    pair.send(Item("w4", priority=199))
    pair.advance(100)
    pair.receive(1)
    pair.advance(3_600_000)
    pair.ack(*pair.receive(5))
    pair.send(Item("w7", due=f"{pair.now}"), Item("w8", due=f"{pair.now - 1}"), Item("w9", due=f"{pair.now + 1}"))
    pair.ack(*pair.receive(5))
    pair.advance(1)
    pair.ack(*pair.receive(5))
    # Not early by a fraction of a millisecond.
    pair.advance_micros(400)
    pair.send(Item("f1", due="+1"), Item("f2", due=f"{pair.now + 1}"), Item("f3"), Item("f4"), Item("f5"))
    third, fourth, fifth = pair.receive(3)
    pair.release(third, delay=5)
    pair.nack(fourth, delay=3)
    pair.nack(fifth, delay=0)
    pair.advance_micros(600)
    pair.ack(*pair.receive(5))
    pair.advance(1)
    pair.ack(*pair.receive(5))
    pair.advance(5)
    pair.ack(*pair.receive(5))
    pair.advance(-7_200_000)
    pair.send(Item("w5", due="+1"))
    pair.advance(1)
    # What is promoted and leased by one call must still be known to expire.
    pair.ack(*pair.receive(5))
    pair.send(Item("w6", due="+1"))
    pair.advance(1)
    pair.receive(5)
    pair.advance(30_000)
    pair.ack(*pair.receive(5))


def _unique_keys(pair: Pair) -> None:
    for letters in ("lrst", "r", "s", "l", "t", "d"):
        pair.send(Item("u1", unique="k", letters=letters), Item("u2", unique="k"))
        pair.send(Item("u3", unique="k", letters=letters))
        held = pair.receive(1)
        pair.send(Item("u4", unique="k", letters=letters))
        pair.nack(*held, delay=100)
        pair.send(Item("u5", unique="k", letters=letters))
        pair.advance(100)
        pair.bury(*pair.receive(9))
        pair.send(Item("u6", unique="k", letters=letters))
        pair.replay("u1", "u2")
        pair.purge("dead")
        pair.delete("u6", "u3")
        pair.ack(*pair.receive(9))
        pair.advance(600_000)
        pair.send(Item("u7", unique="k", letters=letters))
        pair.purge("ready")
        pair.send(Item("tick"))
        pair.ack(*pair.receive(1))
        pair.advance(600_000)


def _repeats(pair: Pair) -> None:
    pair.send(Item("r1"))
    pair.send(Item("r1"), Item("r2"), Item("r2"))
    held = pair.receive(2)
    pair.send(Item("r1"), Item("r2"))
    pair.ack(*held)
    pair.ack(*held)
    pair.send(Item("r1"), Item("r2"))
    pair.advance(59_999)
    pair.send(Item("r1"))
    pair.send(Item("r3"))
    pair.ack(*pair.receive(1))
    pair.send(Item("r1"))
    pair.receive(1, acks=held)
    # Acked at three times, so that they lie in two generations, and all are known for a whole window.
    for id, wait in (("r6", 40_000), ("r7", 30_000), ("r8", 29_999)):
        pair.send(Item(id))
        pair.ack(*pair.receive(1))
        pair.advance(wait)
        pair.send(Item(id))
    pair.send(Item("r7"))
    # A clock that goes back makes nothing older.
    pair.advance(-3_600_000)
    pair.send(Item("r3"), Item("r4"))
    pair.ack(*pair.receive(1))
    pair.send(Item("r3"), Item("r4"))
    pair.advance(59_999)
    pair.send(Item("r5"))
    pair.ack(*pair.receive(1))
    pair.send(Item("r3"), Item("r4"), Item("r5"))


def _limits(pair: Pair) -> None:
    pair.configure(max_length=3, max_leased=2, max_dead=1)
    for at in range(4):
        pair.send(Item(f"l{at}"))
    pair.receive(3)
    pair.receive(3)
    pair.bury(pair.tokens_in_hand()[0])
    pair.send(Item("l9"))
    pair.receive(3, acks=pair.tokens_in_hand())
    pair.ack(*pair.tokens_in_hand())
    pair.purge("dead")
    pair.send(Item("l5"), Item("l6"), Item("l7"))
    # A place becomes free for another message by whatever verdict.
    for verb in (pair.bury, pair.ack, pair.nack, pair.release):
        pair.receive(2)
        pair.send(Item("l8"))
        verb(pair.tokens_in_hand()[0])
    pair.purge("dead")
    pair.ack(*pair.receive(5), *pair.tokens_in_hand())
    pair.ack(*pair.receive(5))
    pair.configure(max_length=None, max_leased=None, max_dead=None)


def _operators(pair: Pair) -> None:
    pair.configure("paused", pause=True)
    pair.send(Item("p1"), Item("p2", due="+10"), Item("p3", priority=1), Item("p4"))
    pair.receive(5)
    pair.configure("resumed", pause=False)
    held = pair.receive(1)
    pair.delete("p1", held[0][0], "nobody")
    pair.edit(Item("p4", b"new", 250))
    pair.edit(Item(held[0][0], b"new"))
    pair.send(Item("p5", priority=250))
    pair.nack(*held, delay=20)
    pair.edit(Item("p3", b"newer", 251), delay=5)
    pair.purge("scheduled", 1)
    pair.advance(20)
    pair.receive(1)
    pair.bury(*pair.receive(1))
    pair.purge("ready", 1)
    pair.purge("dead", 1)
    pair.purge("retrying")
    pair.ack(*pair.tokens_in_hand())


def _results(pair: Pair) -> None:
    pair.configure(keep_done=2)
    pair.send(*(Item(f"d{at}", unique=f"k{at}", letters="k") for at in range(4)))
    for _ in range(2):
        pair.ack(*pair.receive(1))
        pair.advance(1)
    pair.receive(2)
    pair.receive(1, acks=pair.tokens_in_hand())
    pair.edit(Item("d3", unique="k3", letters="k"))
    pair.delete("d3")
    pair.purge("done")
    pair.configure(keep_done=0)


def _two_queues(pair: Pair) -> None:
    pair.send(
        Item("v1", priority=3),
        Item("v2", due="+4000", unique="k"),
        Item("v3"),
        Item("v4"),
        Item("v5", unique="k5"),
        Item("v6", due="+9000"),
    )
    held = dict(pair.receive(4))
    pair.nack(("v1", held["v1"]), delay=300)
    pair.bury(("v3", held["v3"]))
    pair.move("v4", "v1", "nobody", "v2", "v2")
    pair.release(("v5", held["v5"]))
    pair.move("v3", "v5", "v6")
    pair.send(Item("v1"), Item("v7", unique="k5"), Item("v8", unique="k"))
    pair.move("v1", "v7", "v8")
    pair.turn()
    pair.advance(300)
    pair.ack(*pair.receive(1))
    pair.nack(*pair.receive(9), delay=0)
    pair.advance(9000)
    pair.configure(journal="terminal")
    pair.move(*pair.model.ids("retrying")[:1])
    pair.ack(*pair.receive(9))
    pair.configure(journal="full")
    pair.turn()
    pair.configure(keep_done=1)
    pair.ack(*pair.receive(1), *pair.tokens_in_hand())
    pair.move(*pair.model.ids("done"))
    pair.configure(keep_done=0)
    pair.purge("done")
    pair.ack(*pair.receive(9))


def _levels(pair: Pair) -> None:
    """Every event under every level, and the numbers go on from one to the next."""
    for at, level in enumerate(("terminal", "off", "full", "payloads", "off", "terminal", "payloads", "full")):
        a, b, c, d, e, f, g, h, i = ids = [f"j{at}{letter}" for letter in "abcdefghi"]
        pair.configure(journal=level, max_attempts=2)
        pair.send(*(Item(id, max_attempts=1 if id == f else None, due="+50" if id == i else "") for id in ids))
        held = pair.receive(6, lease_ms=50)
        pair.receive(1, acks=held[:2])
        pair.receive(0, acks=held[:1])
        pair.nack(*held[2:3])
        pair.bury(*held[3:4])
        pair.extend(*held[4:5], lease_ms=50)
        pair.advance(50)
        # Two leases end, one of them for good, and something is promoted.
        pair.receive(2)
        pair.edit(Item(h, b"new"))
        pair.replay(d, f, a, b)
        pair.release(*pair.tokens_in_hand()[:1])
        pair.nack(*pair.tokens_in_hand()[:1], delay="dead")
        pair.delete(h, c)
        pair.purge("dead")
        pair.move(i, e, g)
        pair.ack(*pair.receive(9), *pair.tokens_in_hand())
        pair.turn()
        pair.ack(*pair.receive(9))
        pair.turn()
    pair.configure(max_attempts=5)


def _payloads(pair: Pair) -> None:
    """Stored forms beside the lines, by the level of the queue that is written to."""
    pair.turn()
    pair.configure(journal="payloads")
    pair.turn()
    pair.send(Item("b1", b"one"), Item("b2", due="+5000"), Item("e", b"\x00\n\t"), careful=False)
    pair.send(Item("b1"), Item("b3", unique="k"), Item("b4", unique="k"))
    pair.edit(Item("b3", b"two", unique="k"))
    pair.move("b1", "b2")
    pair.configure(journal="payloads")
    pair.send(Item("b5", b"five"), Item("b6"), Item("e"))
    pair.send(Item("b5"))
    pair.send(Item("b7", priority=3), careful=False)
    pair.edit(Item("b5", b"six", 9))
    held = pair.receive(2)
    pair.nack(*pair.receive(1, acks=held[:1]), delay=10)
    pair.move("b6", "e")
    pair.configure(journal="full")
    pair.turn()
    pair.edit(Item("b2", b"later"), delay=7000)
    pair.move("b2", "b1")
    pair.configure(journal="full")
    pair.send(Item("b8"))
    for _ in range(2):
        pair.purge("scheduled")
        pair.purge("retrying")
        pair.ack(*pair.receive(9), *pair.tokens_in_hand())
        pair.turn()
    pair.turn()


def _lease_journal(pair: Pair) -> None:
    """Rows outlive their leases with the verdicts, one owner at a time, until they are cleared."""
    pair.send(*(Item(f"h{at}", b"p%d" % at, max_attempts=9) for at in range(9)))
    pair.nack(*pair.receive(1))
    held = pair.receive(7)
    wrong = (held[0][0], "9999-n")
    pair.hold()
    for _ in range(2):
        pair.hold(*held[:3])
        pair.hold()
    pair.hold(held[3], owner=RIVAL)
    pair.ack(held[3])
    pair.advance(5)
    pair.hold(*held[3:5], wrong, ("nobody", "1-n"), (held[5][0], ""), (held[5][0], "-"))
    pair.hold(wrong, held[3])
    # Each verdict is remembered by its token, where the lease was held.
    pair.ack(held[0], wrong, held[0], kept=True)
    pair.nack(wrong, held[1], held[1], delay=10, kept=True)
    pair.bury(wrong, held[2], held[3], kept=True)
    pair.release(held[0], held[4], wrong, kept=True)
    pair.ack(held[0], wrong, kept=True)
    pair.ack(held[5])
    for upto, entries in ((0, 20), (2, 20), (3, 1), (3, 1)):
        pair.clear(upto, entries)
    # Another lease of the same message is another row.
    pair.send(Item("h9", priority=200))
    for verb in (pair.release, pair.ack):
        (one,) = pair.receive(1)
        pair.hold(one)
        verb(one)
    pair.hold(held[6])
    pair.release(held[6], delay=5, kept=True)
    pair.clear(9, 1)
    # The ownership lasts to the millisecond, from its last renewal on.
    pair.advance(59_999)
    pair.hold(owner=RIVAL)
    pair.advance(1)
    taken = pair.receive(9)
    pair.hold(*taken, owner=RIVAL, lasts=1)
    pair.hold(*taken)
    pair.advance(1)
    pair.hold(*taken)
    pair.ack(*taken, kept=True)
    pair.clear(9999)
    pair.clear(9999)
    pair.ack(*pair.tokens_in_hand())


def _control(pair: Pair) -> None:
    """Messages taken back and given up in every state, progress that ends with its lease, and results."""
    pair.configure(max_attempts=2, keep_done=3)
    pair.send(Item("k1", unique="k", letters="r"), Item("k2", priority=3, unique="k2", letters="lr"), Item("k3"))
    pair.send(Item("k4", due="+4000"), Item("k5", lease_ms=1000), Item("k6", unique="k6", letters="lrst"))
    held = dict(pair.receive(5))
    one, two, three, five, six = ((id, held[id]) for id in ("k1", "k2", "k3", "k5", "k6"))
    pair.progress(one, '[0.25,"one"]')
    pair.progress(one)
    pair.progress(five)
    for wrong in (("k1", "9999-n"), ("k1", ""), ("k1", "-"), ("nobody", "1-n")):
        pair.progress(wrong)
    # It stays with an extend, and ends with the lease.
    pair.extend(one, three, lease_ms=9000)
    pair.revoke("k1", "k1", "k4", "nobody", "k3")
    for verb in (pair.ack, pair.nack, pair.bury, pair.release, pair.extend):
        verb(one)
    pair.progress(one)
    pair.ack_result(one)
    pair.send(Item("k7", unique="k", letters="r"))
    # Taken back once more, after the last attempt; what is overdue too.
    again = dict(pair.receive(2))
    pair.revoke(*again)
    pair.advance(1000)
    pair.revoke("k5")
    pair.progress(five)
    pair.cancel("k2", "k2", "nobody", "k4", "k5")
    pair.extend(two, ("k2", "9999-n"), six)
    pair.progress(two)
    pair.ack(two)
    pair.send(Item("k2", unique="k2", letters="lr"), Item("k4"))
    pair.cancel("k6")
    pair.send(Item("k8", unique="k6"))
    pair.extend(two, six)
    # A token is known as cancelled until its lease would have ended, and is forgotten by the next cancel after that.
    held = dict(pair.receive(9))
    pair.nack(("k1", held["k1"]), delay=50)
    pair.nack(("k8", held["k8"]), delay=50)
    pair.advance(30_000)
    pair.cancel("k8", "k1")
    pair.extend(two, six)
    (last,) = pair.receive(1)
    pair.cancel(last[0])
    pair.extend(two, six, last)
    pair.advance(30_000)
    (late,) = pair.receive(1)
    pair.cancel(late[0])
    pair.extend(last, late)
    # What is overdue holds nothing that a renewal could learn of.
    pair.send(Item("ko", lease_ms=10))
    (overdue,) = pair.receive(1)
    pair.advance(10)
    pair.cancel(overdue[0])
    pair.extend(overdue)
    # Results are kept where done messages are, and a repeated ack changes nothing.
    pair.send(Item("k9"), Item("ka"), Item("kb"), Item("kc", unique="kc", letters="k"))
    pair.receive(9)
    for pair_held in pair.tokens_in_hand():
        pair.progress(pair_held)
        pair.ack_result((pair_held[0], "9999-n"))
        pair.ack_result(pair_held, '{"n":1}')
        pair.ack_result(pair_held, "2")
        pair.ack_result((pair_held[0], "9999-n"))
    pair.cancel(*pair.model.ids("done"))
    pair.revoke(*pair.model.ids("done"))
    pair.configure(keep_done=0)
    pair.send(Item("kd"), Item("ke"))
    first, second = pair.receive(2)
    pair.ack_result(first)
    pair.bury(second)
    pair.cancel(first[0], second[0])
    pair.purge("dead")
    pair.purge("done")
    # A place that becomes free is offered to the next consumer.
    pair.configure(max_leased=1, max_attempts=5)
    pair.purge("ready")
    for at, stop in enumerate((pair.cancel, pair.revoke)):
        pair.send(Item(f"m1{at}"), Item(f"m2{at}"))
        (holding,) = pair.receive(1)
        stop(holding[0])
        pair.ack_result(pair.receive(1)[0])
        pair.ack(*pair.receive(1))
    for at, level in enumerate(("terminal", "payloads", "off", "full")):
        pair.configure(journal=level)
        pair.send(Item(f"n1{at}"), Item(f"n2{at}"))
        pair.revoke(pair.receive(1)[0][0])
        pair.cancel(pair.receive(1)[0][0])
        pair.ack_result(pair.receive(1)[0])
    pair.configure(max_leased=None)


def _schedules(pair: Pair) -> None:
    """Schedules stored, fired, passed over and removed; who read an old head changes nothing."""
    pair.tick()
    pair.schedule("s", due=5000)
    pair.schedule("s", due=1)
    pair.schedule("s", "h2", "h3", due=1)
    pair.schedule("t", due=7000)
    pair.schedule("paused")
    pair.schedule("near", due=4000)
    pair.schedule("nobody", "h1", None)
    pair.tick()

    def due(name: str, number: int, **options: Any) -> Tick:
        one = Item(f"{name}@{number}", priority=number)
        told = Tick(name, f"h{number}", f"{one.id}\th{number + 1}", messages=((one, pair.now),))
        return replace(told, **options)

    pair.tick(ahead=5000)
    pair.tick(ahead=4999)
    pair.tick(ahead=9000, most=2)
    early = due("s", 1, messages=((Item("s@1"), pair.now + 1),))
    pair.tick(early)
    pair.advance(5000)
    pair.tick(most=1)
    pair.tick(most=1, chance=1)
    pair.tick(ahead=9000)
    pair.tick(due("s", 1, due=pair.now + 2000), due("near", 2), due("near", 1, due=None), due("gone", 1))
    pair.tick(due("s", 1, due=pair.now + 2000))
    # Two messages of one tick, one of which was sent before, and a unique key that is held.
    pair.send(Item("u", unique="k"), Item("s@9"))
    both = ((Item("s@9"), pair.now), (Item("s@10"), pair.now - 1), (Item("s@11", unique="k"), pair.now))
    pair.tick(Tick("s", "s@1\th2", "s@10\th3", due=pair.now, messages=both))
    # The last message waits in one state after the other, then has ended.
    last = "s@10\th3"
    again = Tick("s", last, "none\th4", last, pair.now + 1, ((Item("s@12"), pair.now),))
    pair.tick(again)
    held = dict(pair.receive(9))
    pair.tick(again)
    pair.nack(("s@10", held["s@10"]), delay=500)
    pair.tick(again)
    pair.advance(500)
    pair.release(*pair.receive(1), delay=300)
    pair.tick(again)
    pair.advance(300)
    pair.bury(*pair.receive(1))
    pair.tick(again)
    pair.tick(Tick("t", "h1", "h2"))
    pair.tick(Tick("paused", "h1", "x\th2", "y\th2", messages=((Item("p@1"), pair.now),)))
    # A full queue refuses all of a call.
    lives = sum(entry.state in ("ready", "scheduled", "retrying", "leased") for entry in pair.model.entries.values())
    pair.configure(max_length=lives + 1)
    pair.schedule("full", due=0)
    pair.schedule("full2", due=0)
    pair.tick(due("full", 1), due("full2", 1))
    pair.tick(due("full", 1))
    pair.tick(due("full2", 1))
    pair.configure(max_length=None)
    pair.tick(due("full2", 1))
    for level in ("payloads", "terminal", "off", "full"):
        pair.configure(journal=level)
        pair.schedule(level, due=0)
        pair.tick(due(level, 1))
        pair.schedule(level, f"{level}@1\th2", None)
    for name, head in pair.model.schedules.heads.copy().items():
        pair.schedule(name, head + "x", None)
        pair.schedule(name, head, "h9", due=-1)
        pair.tick()
        pair.schedule(name, "h9", "h10")
        pair.schedule(name, "h10", None)
    pair.schedule("last", due=5)
    pair.schedule("last", "h1", None)
    pair.ack(*pair.tokens_in_hand())
    pair.ack(*pair.receive(99))
    pair.purge("dead")


def _walk(pair: Pair, chance: random.Random, steps: int) -> None:
    """Verbs by chance, weighted so that messages come to every state."""
    spans = (1, 10, 1000, 5000, 30_000, 70_000)

    def item(id: str) -> Item:
        return Item(
            id,
            bytes(chance.randrange(256) for _ in range(3)),
            chance.choice((0, 0, 1, 255)),
            chance.choice(("", "", f"+{chance.choice(spans)}", f"{pair.now + chance.choice((-1, 0, 1, 7000))}")),
            chance.choice(("", "mail")),
            chance.choice((None, None, 1000)),
            chance.choice((None, 1, 2)),
            chance.choice((None, None, "k1", "k2")),
            chance.choice(("lrst", "r", "d", "klrst")),
        )

    def some(least: int = 1) -> list[tuple[str, str]]:
        pool = pair.tokens_in_hand() * 3 + pair.tokens[-6:] + [("nobody", "1-n")]
        return chance.sample(pool, min(len(pool), chance.randint(least, 3)))

    def kept() -> bool:
        return chance.random() < 0.3

    def schedule() -> None:
        name = chance.choice(("s1", "s2", "s3"))
        known = pair.model.schedules.heads.get(name, "")
        after = chance.choice((f"\th{pair.now}", f"m{chance.randrange(20)}\th{pair.now}", None))
        pair.schedule(name, chance.choice((known, known, "other")), after, chance.choice((None, -1, 0, 1000, 9000)))

    def tick() -> None:
        names = chance.sample(("s1", "s2", "s3"), chance.randint(0, 2))
        made = []
        for number, name in enumerate(names):
            head = chance.choice((pair.model.schedules.heads.get(name, ""), "other"))
            one = Item(f"{name}@{pair.bench.clock.now_us}.{len(pair.model.journal)}.{number}", priority=number)
            passed = chance.choice(("", f"{head}p"))
            due = chance.choice((None, pair.now + 500))
            at = pair.now + chance.choice((-1, 0, 0, 1))
            made.append(Tick(name, head, f"{one.id}\th", passed, due, ((one, at),)[: chance.randint(0, 1)]))
        pair.tick(*made, most=chance.randint(0, 3), chance=chance.randrange(5), ahead=chance.choice((0, 900)))

    def present() -> str:
        return chance.choice([*pair.model.entries, f"m{chance.randrange(20)}"])

    def edit() -> None:
        id = present()
        entry = pair.model.entries.get(id)
        wished = item(id)
        kept = entry.item if entry else replace(wished, unique=None)
        pair.edit(replace(wished, due="", unique=kept.unique, letters=kept.letters), chance.choice((None, *spans)))

    verbs: list[tuple[int, Callable[[], None]]] = [
        (6, lambda: pair.send(*(item(f"m{chance.randrange(20)}") for _ in range(chance.randint(1, 3))))),
        (6, lambda: (pair.receive(chance.randint(0, 4), acks=some(0)), None)[1]),
        (3, lambda: pair.ack(*some(), kept=kept())),
        (3, lambda: pair.nack(*some(), delay=chance.choice((0, *spans)), kept=kept())),
        (2, lambda: pair.bury(*some(), kept=kept())),
        (2, lambda: pair.release(*some(), delay=chance.choice((0, *spans)), kept=kept())),
        (2, lambda: pair.extend(*some(), lease_ms=chance.choice(spans))),
        (2, lambda: pair.replay(present(), *pair.model.ids("dead")[:1])),
        (1, lambda: pair.delete(present(), present())),
        (2, lambda: pair.revoke(present(), present())),
        (1, lambda: pair.cancel(present())),
        (2, lambda: pair.progress(some()[0])),
        (2, lambda: pair.ack_result(some()[0])),
        (1, lambda: pair.purge(chance.choice(("ready", "scheduled", "retrying", "dead")), chance.randint(1, 2))),
        (2, edit),
        (2, lambda: pair.move(present(), present())),
        (2, schedule),
        (3, tick),
        (1, pair.turn),
        (1, lambda: pair.configure(journal=chance.choice(("full", "full", "payloads", "terminal", "off")))),
        (2, lambda: pair.hold(*some(0), owner=chance.choice((OWNER, OWNER, RIVAL)), lasts=chance.choice(spans))),
        (1, lambda: pair.clear(chance.randrange(pair.model.book.last + 2), chance.randint(1, 3))),
        (4, lambda: pair.advance(chance.choice(spans))),
        (1, lambda: pair.advance(-chance.choice(spans))),
        (1, lambda: pair.advance_micros(chance.choice((1, 500, 999)))),
    ]
    weights = [weight for weight, _ in verbs]
    for _ in range(steps):
        (_, verb), *_ = chance.choices(verbs, weights)
        verb()

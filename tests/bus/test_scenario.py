"""What two services and a broker must get right, the same on Redis and on RabbitMQ."""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from restante.bus import BusClient
from restante.bus.dead import DeadFilter
from restante.core import errors
from tests.bus.places import OnRabbitMQ, Place, Service
from tests.bus.service import Paid, Price
from tests.celery.workers import wait_for
from tests.faults.rows import missing, verdict
from tests.harness.deadlines import PATIENCE, at_most, wait_until

Start = Callable[..., Service]


class TestEvents:
    def test_a_failing_handler_is_retried_by_the_policy_and_archived_while_others_see_the_event_once(
        self, place: Place, service: Start
    ) -> None:
        service("billing", "failing", "paid", delays=(1, 2, 4))
        service("mail", "paid")
        with place.client() as client:
            sent = client.publish(Paid(order=1, amount=Decimal("0.30")))
        assert sent.subscriptions == 3
        (dead,) = place.wait_dead("billing", 1)
        tries = place.rows("failing", "billing")
        assert [row["attempts"] for row in tries] == [1, 2, 3, 4]
        for wanted, one, other in zip((1, 2, 4), tries[:-1], tries[1:], strict=True):
            # From failure to the next start: never sooner, at most a fifth later, and what a process takes to begin.
            assert wanted <= other["at"] - one["at"] <= wanted * 1.2 + 0.1
        assert (dead.id, dead.attempts, dead.error_class) == (sent.id, 4, "ConnectionError")
        assert dead.subscription == f"{place.named('billing')}.failing"
        assert "the carrier is away" in dead.error
        assert len(place.rows("paid", "billing")) == len(place.rows("paid", "mail")) == 1
        assert {row["id"] for row in place.rows()} == {sent.id}

        place.mend()
        letters = place.dead("billing")
        assert letters.replay(dry_run=True) == 1
        assert letters.replay(DeadFilter(error_class="KeyError")) == 0
        assert letters.replay() == 1
        row = place.wait_rows(5, "failing", "billing")[-1]
        assert (row["attempts"], row["mended"], row["data"]) == (1, True, {"order": 1, "amount": "0.30"})
        wait_for(lambda: letters.list() == [])
        letters.close()
        assert len(place.rows("paid")) == 2  # a replay is for the one service, and the one handler

    def test_the_same_event_three_times_runs_once_per_handler(self, place: Place, service: Start) -> None:
        service("billing", "paid", "every", "typed", pool="threads")
        with place.client() as client:
            for _ in range(3):
                client.publish("shop.order.paid", {"order": 7}, id="order-7-paid")
            client.publish("shop.order.paid", {"order": 8})
        place.wait_rows(2, "every", "billing")
        place.wait_rows(2, "paid", "billing")
        place.wait_rows(2, "typed", "billing")
        time.sleep(0.5)
        assert Counter((row["kind"], row["data"]["order"]) for row in place.rows()) == {
            (kind, order): 1 for kind in ("paid", "every", "typed") for order in (7, 8)
        }

    def test_delay_priority_expiry_and_headers_travel(self, place: Place, service: Start) -> None:
        billing = service("billing", "paid", "slow", concurrency=1)
        with place.client() as client:
            client.publish("shop.slow", {"hold": True})
            place.wait_rows(1, "begun")
            # Behind the slow one there is one more in the worker's hands; the rest stands by priority.
            for number, priority in ((3, 0), (4, 0), (5, 255)):
                client.publish("shop.order.paid", number, priority=priority)
            started = time.time()
            client.publish("shop.order.paid", 1, delay=1.5)
            client.publish("shop.order.paid", 2, expires=0.2, delay=1)  # over while the slow one runs
            over = time.time() + 1.3
            client.publish("shop.order.paid", 6, expires=600, delay=0.5)  # the delay is none of it
            time.sleep(max(0.0, over - time.time()))
            place.ledger.with_suffix(".mended").touch()
        rows = place.wait_rows(5, "paid", "billing")
        delayed = next(row for row in rows if row["data"] == 1)
        assert delayed["at"] - started >= 1.5
        numbers = [row["data"] for row in rows if row["data"] != 1]
        assert numbers.index(5) < numbers.index(4)
        assert 2 not in numbers
        assert 6 in numbers
        assert billing.returncode is None

    def test_an_event_nobody_listens_to_is_kept_or_refused(self, place: Place, service: Start) -> None:
        topic = f"nowhere.{place.mark}.happened"
        with place.client() as client:
            kept = client.publish(topic, {"n": 1})
            assert kept.subscriptions == 0
            with pytest.raises(errors.Unroutable, match=topic):
                client.publish(topic, {"n": 2}, unrouted="raise")
        if isinstance(place, OnRabbitMQ):
            # Other tests leave some there too.
            def ids(channel: Any) -> list[str]:
                got = iter(lambda: channel.basic_get("events.unrouted", no_ack=True), None)
                return [message.headers["cloudEvents_id"] for message in got]

            assert kept.id in place.channel(ids)
        else:
            import restante

            with restante.connect(place.url.replace("restante://", "redis://")) as post:
                assert [one.id for one in restante.Admin(post).peek("events.unrouted")] == [kept.id]

    def test_celery_words_make_a_policy(self, place: Place, service: Start) -> None:
        service("billing", "celery_style")
        with place.client() as client:
            for data in ("key", "os", "retry", "reject", "again"):
                client.publish("shop.celery", data)
        place.wait_dead("billing", 5)
        tries = Counter(row["data"] for row in place.rows("celery_style"))
        assert tries == {
            "key": 3,
            "os": 1,
            "retry": 3,
            "reject": 1,
            "again": 3,
        }  # autoretry_for names KeyError alone; max_retries is 2
        keys = [row["at"] for row in place.rows("celery_style") if row["data"] == "key"]
        assert 1.0 <= keys[1] - keys[0] <= 1.6
        assert 2.0 <= keys[2] - keys[1] <= 2.7

    def test_an_event_is_published_while_its_handler_runs_in_the_same_service(
        self, place: Place, service: Start
    ) -> None:
        from tests.bus.service import make

        bus = make(
            {"service": place.named("billing"), "broker": place.url, "handlers": ["paid"], "options": place.options}
        )

        @bus.event("shop.order.paid")
        def order_paid(order: int) -> None:
            if order < 0:
                raise ValueError("no such order")

        service("billing", "paid")
        assert order_paid(3).subscriptions is not None
        with pytest.raises(ValueError, match="no such order"):
            order_paid(-1)
        assert [row["data"] for row in place.wait_rows(1, "paid")] == [{"order": 3}]
        bus.close()


class TestPoison:
    def test_every_kind_of_poison_reaches_the_archive_and_the_rest_goes_on(self, place: Place, service: Start) -> None:
        billing = service("billing", "typed", "killer", "limit", "paid")
        head = {"specversion": "1.0", "source": "tests", "time": "2026-01-01T00:00:00+00:00", "type": "shop.order.paid"}
        json = "application/json"
        poison: list[tuple[str, bytes, dict[str, str], str]] = [
            ("undecodable", b"\xff\xfe{", {**head, "id": "undecodable"}, json),
            ("foreign", b"<xml/>", {**head, "id": "foreign"}, "text/xml"),
            ("schema", b'{"order": "many"}', {**head, "id": "schema"}, json),
            ("topic", b"1", {**head, "id": "topic", "type": "no topic!"}, json),
            ("time", b"1", {**head, "id": "time", "time": "yesterday"}, json),
        ]
        for _, body, headers, content_type in poison:
            place.raw("billing", "typed", body, headers, content_type)
        with place.client() as client:
            client.publish("shop.killer", "bang")
            client.publish("shop.limit", "forever")
            client.publish(Paid(order=1))
        dead = place.wait_dead("billing", 7)
        classes = Counter(one.error_class for one in dead)
        # On Redis text that is none is found by the transport already.
        assert classes["Malformed"] + classes["UnicodeDecodeError"] == 4
        assert classes["InvalidPayload"] == 1
        assert classes["WorkerLostError"] == classes["TimeLimitExceeded"] == 1
        assert [row["attempts"] for row in place.rows("killer")] == [1, 2, 3]
        assert len(place.rows("limit")) == 2
        assert len(place.wait_rows(1, "typed")) == 1
        assert billing.returncode is None
        place.mend()

    def test_what_kills_the_whole_worker_is_counted_too(self, place: Place, service: Start) -> None:
        options = {} if place.kind == "redis" else {"dedup": 0}  # without records the broker counts
        conf = {"broker_transport_options": {"visibility_timeout": 1.5}} if place.kind == "redis" else {}
        first = service("billing", "killer", pool="solo", options=options, conf=conf)
        with place.client() as client:
            client.publish("shop.killer", "bang")
        for attempt in (1, 2, 3):
            place.wait_rows(attempt, "killer")
            first.wait()
            if attempt < 3:
                first = service("billing", "killer", pool="solo", options=options, conf=conf)
        last = service("billing", "killer", "paid", pool="solo", options=options, conf=conf)
        (dead,) = place.wait_dead("billing", 1)
        assert dead.topic == "shop.killer"
        assert len(place.rows("killer")) == 3
        assert last.returncode is None


class TestFaults:
    def test_nothing_is_lost_by_ten_killed_workers_and_a_killed_broker(self, place: Place, service: Start) -> None:
        count, concurrency = 300, 2
        conf = {"broker_transport_options": {"visibility_timeout": 2}} if place.kind == "redis" else {}
        workers = [service("billing", "slow", conf=conf, concurrency=concurrency) for _ in range(2)]
        ids: list[str] = []

        def publish() -> None:
            with place.client(patience=PATIENCE) as client:
                for number in range(count):
                    ids.append(client.publish("shop.slow", {"n": number, "seconds": 0.02}).id)
                    time.sleep(0.02)

        publisher = threading.Thread(target=publish)
        publisher.start()
        killed: set[int] = set()
        broker_killed_at = 0.0
        for kill in range(10):
            time.sleep(0.4)
            assert workers[kill % 2].returncode is None, workers[kill % 2].stderr[-3000:]
            killed.add(workers[kill % 2].pid)
            workers[kill % 2].kill9()
            if kill == 5:
                workers[0].wait_ready()  # one that finds no broker when it starts ends, with the reason
                broker_killed_at = time.time()
                place.kill()
            workers[kill % 2] = service("billing", "slow", conf=conf, concurrency=concurrency, wait=False)
        publisher.join()
        assert len(ids) == count
        wait_for(
            lambda: {row["id"] for row in place.rows("slow")} >= set(ids),
            PATIENCE,
            lambda: f"{len(set(ids) - {row['id'] for row in place.rows('slow')})} missing",
        )
        wait_for(lambda: place.waiting("billing", "slow") == 0, PATIENCE, lambda: str(place.waiting("billing", "slow")))
        seen = {row["id"] for row in place.rows("slow")}
        verdict(1, n=count, lost=missing(ids, seen), phantom=missing(seen, ids), broker=place.kind)
        by_id: dict[str, list[dict[str, Any]]] = {}
        for row in place.rows("begun"):
            by_id.setdefault(row["id"], []).append(row)
        lost_runs = Counter[int]()
        for runs in by_id.values():
            for before, again in itertools.pairwise(sorted(runs, key=lambda row: float(row["at"]))):
                # A second run needs a first that was cut short: its worker was killed, or the broker while it ran.
                if before["parent"] in killed:
                    lost_runs[before["parent"]] += 1
                else:
                    assert before["at"] <= broker_killed_at <= again["at"], (before, again)
        assert max(lost_runs.values(), default=0) <= concurrency  # what the processes of one worker had in hands

    def test_a_restarted_broker_keeps_what_waits_and_services_go_on(self, place: Place, service: Start) -> None:
        billing = service("billing", "paid", "failing", "price", delays=(3,))
        with place.client() as client:
            client.publish("shop.order.paid", 1)
            place.wait_rows(1, "failing")
            client.publish("shop.order.other", 2, delay=4)
            place.restart()
            client.publish("shop.order.paid", 3)
            place.wait_rows(2, "paid")
            wanted = Counter({1: 2, 2: 1, 3: 1})
            wait_until(
                lambda: Counter(row["data"] for row in place.rows("failing")) >= wanted,
                lambda: f"{place.rows('failing')}\n{billing.stderr[-6000:]}",
            )
            wait_for(lambda: client.call(Price(sku="x"), timeout=20) == Decimal("10.10"))
        assert billing.returncode is None


class TestCalls:
    @pytest.mark.timed
    def test_a_call_is_answered_once_by_one_instance_with_types_kept(self, place: Place, service: Start) -> None:
        service("prices", "price")
        service("prices", "price")
        service("spare", "price")
        with place.client() as client:
            assert [client.call(Price(sku=f"s{n}")) for n in range(20)] == [Decimal("10.10")] * 20
            skus = Counter(row["sku"] for row in place.rows("price") if row["sku"].startswith("s"))
            assert skus == {f"s{n}": 1 for n in range(20)}
            with pytest.raises(errors.Declined) as no:
                client.call(Price(sku="none"))
            assert no.value.data == {"reason": "sold out"}
            with pytest.raises(errors.CallFailed, match="RuntimeError: the shelf fell over"):
                client.call(Price(sku="error"))
            with pytest.raises(errors.CallFailed, match="WorkerLostError"):
                client.call(Price(sku="die"))
            with pytest.raises(errors.CallFailed, match="InvalidPayload"):
                client.call("shop.price.get", {"sku": 5})
            with at_most(1), pytest.raises(errors.NoHandler, match=f"nobody.{place.mark}"):
                client.call(f"nobody.{place.mark}", timeout=20)
            answers: dict[str, Any] = wait_until(
                lambda: found if len(found := client.call_all(Price(sku="both"), timeout=5)) > 1 else {}
            )
        assert sorted(answers) == [place.named("prices"), place.named("spare")]
        assert {one.value(Decimal) for one in answers.values()} == {Decimal("10.10")}

    def test_a_call_not_begun_before_its_timeout_is_not_begun_later(self, place: Place, service: Start) -> None:
        service("prices", "price", concurrency=1)
        with place.client() as client:
            blocking = threading.Thread(target=lambda: client.call(Price(sku="slow3"), timeout=PATIENCE))
            blocking.start()
            place.wait_rows(1, "priced")
            for number in range(3):
                with pytest.raises(errors.CallTimeout):
                    client.call(Price(sku=f"late{number}"), timeout=0.3)
            blocking.join()
            assert client.call(Price(sku="after"), timeout=PATIENCE) == Decimal("10.10")
            time.sleep(0.3)
        # A call of the test before may come again here: its worker can have ended before its ack.
        mine = [row["sku"] for row in place.rows("price") if row["sku"].startswith(("slow", "late", "after"))]
        assert mine == ["slow3", "after"]
        verdict(51, n=5, stale=sum(sku.startswith("late") for sku in mine), broker=place.kind)

    def test_a_thousand_calls_under_load_are_answered_though_a_server_is_killed(
        self, place: Place, service: Start
    ) -> None:
        conf = {"broker_transport_options": {"visibility_timeout": 2}} if place.kind == "redis" else {}
        doomed = service("prices", "price", conf=conf)
        service("prices", "price", conf=conf)
        answered: list[Decimal] = []
        failed: list[BaseException] = []

        def many(client: BusClient) -> None:
            for number in range(250):
                try:
                    answered.append(client.call(Price(sku=f"{threading.get_ident()}-{number}"), timeout=PATIENCE))
                except Exception as error:
                    failed.append(error)

        with place.client() as client:
            threads = [threading.Thread(target=many, args=(client,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            wait_for(lambda: len(answered) > 200)
            doomed.kill9()
            for thread in threads:
                thread.join()
        assert not failed, failed[:3]
        assert set(answered) == {Decimal("10.10")}
        verdict(51, n=1000, lost=1000 - len(answered), broker=place.kind)

    async def test_the_asyncio_client_publishes_and_calls_alike(self, place: Place, service: Start) -> None:
        import asyncio

        from restante.bus import AsyncBusClient

        service("prices", "price", "paid")
        async with AsyncBusClient(place.url, source="tests") as client:
            assert await client.call(Price(sku="a")) == Decimal("10.10")
            many = await asyncio.gather(*(client.call(Price(sku=f"m{n}")) for n in range(20)))
            assert many == [Decimal("10.10")] * 20
            with pytest.raises(errors.NoHandler):
                await client.call(f"nobody.{place.mark}")
            with pytest.raises(errors.Unroutable):
                await client.publish(f"nobody.{place.mark}", unrouted="raise")
            with pytest.raises(errors.CallTimeout):
                await client.call(Price(sku="slow2"), timeout=0.2)
            sent = await client.publish("shop.order.paid", {"order": 1}, delay=0.5)
            assert (await client.publish("shop.order.paid", {"order": 1}, id=sent.id)).id == sent.id
            while place.named("prices") not in await client.call_all(Price(sku="all"), timeout=3):
                pass  # It was too busy to answer in time.
        assert len(place.wait_rows(1, "paid")) == 1


class TestMemory:
    @pytest.mark.parametrize("count", [600, pytest.param(10_000, marks=pytest.mark.chaos)])
    def test_delayed_retries_wait_at_the_broker_not_in_the_worker(
        self, place: Place, service: Start, count: int
    ) -> None:
        billing = service("billing", "failing", delays=(600,))
        with place.client() as client:
            for number in range(100):
                client.publish("shop.order.paid", number)
            place.wait_rows(100, "failing")
            before = memory(billing.pid)
            for number in range(100, count):
                client.publish("shop.order.paid", number)
        place.wait_rows(count, "failing")
        wait_for(lambda: settled(place, count))
        assert memory(billing.pid) - before < 12_000_000
        os.kill(billing.pid, signal.SIGTERM)
        assert billing.wait() == 0


def settled(place: Place, count: int) -> bool:
    if isinstance(place, OnRabbitMQ):
        return place.waiting("billing", "failing") == 0
    import restante

    with restante.connect(place.url.replace("restante://", "redis://")) as post:
        return restante.Admin(post).counts(f"{place.named('billing')}.failing").retrying == count


def memory(pid: int) -> int:
    """Bytes a worker and its pool have for themselves."""
    import subprocess

    children = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()
    total = 0
    for one in (str(pid), *children):
        with open(f"/proc/{one}/smaps_rollup") as file:
            total += sum(int(line.split()[1]) * 1024 for line in file if line.startswith(("Private_", "Swap:")))
    return total

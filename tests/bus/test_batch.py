"""Publishing without waiting for each confirm: blocks and futures, on both brokers, also when the broker goes away."""
# ruff: noqa: PT012 - it is the end of the block that raises

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import wait as wait_all
from typing import Any

import amqp
import pytest

import restante
from restante import Admin, BatchFailed
from restante.bus import AsyncBusClient, Bus, BusClient, Published, confirms
from restante.bus.batch import Publishing
from restante.core import errors
from tests.bus.places import OnRabbitMQ, OnRedis, Place
from tests.celery.workers import wait_for
from tests.harness.deadlines import PATIENCE
from tests.harness.proxy import FaultProxy
from tests.harness.servers import closed_port


@pytest.fixture
def bus(place: Place) -> Iterator[Bus]:
    """A service that has subscribed, and whose worker is not there: what is published to it waits."""
    made = Bus(place.named("billing"), place.url, **place.options)
    made.subscribe(f"batch.{place.mark}", name="h")(lambda data: None)
    made.declare()
    if isinstance(place, OnRabbitMQ):
        place.rabbit.write_down()
    yield made
    made.close()


def waiting(place: Place, name: str) -> list[Any]:
    """Ids and data of what waits in a queue, in its order; they are taken out."""
    if isinstance(place, OnRedis):
        with restante.connect(place.server.url) as post:
            queue = post.queue(name)
            return [(one.id, one.payload) for some in iter(lambda: queue.receive_many(500), []) for one in some]
    assert isinstance(place, OnRabbitMQ)

    def read(channel: Any) -> list[Any]:
        got = iter(lambda: channel.basic_get(name, no_ack=True), None)
        return [(one.properties["message_id"], restante.core.stored.decode_json(one.body.encode())) for one in got]

    return list(place.channel(read))


def aio(place: Place, **settings: Any) -> AsyncBusClient:
    return AsyncBusClient(place.url, **settings, **place.options)


class TestBlocks:
    def test_the_end_of_a_block_means_that_the_broker_has_every_event(self, place: Place, bus: Bus) -> None:
        topic, count = f"batch.{place.mark}", confirms.WINDOW + 200
        with bus.batch() as batch:
            sent = [bus.publish(topic, number) for number in range(10)]
            batch.wait()
            assert place.waiting("billing", "h") == 10
            sent += [bus.publish(topic, number) for number in range(10, count)]
        assert {one.subscriptions for one in sent} == {None}
        assert waiting(place, f"{bus.service}.h") == [(one.id, number) for number, one in enumerate(sent)]
        assert bus.publish(topic, "alone").subscriptions == 1  # the block is over

    def test_a_block_is_in_the_journal(self, place: Place, bus: Bus) -> None:
        topic = f"batch.{place.mark}"
        with bus.batch():
            futures = [bus.publish(topic, number, wait=False) for number in range(120)]
        assert {one.result().subscriptions for one in futures} == {1}
        store = place.options.get("store") or place.url.replace("restante://", "redis://")
        with restante.connect(store) as post:
            lines = [line for line in Admin(post).journal(f"{bus.service}.h") if line.event.value == "sent"]
        assert [line.message_id for line in lines] == [one.id for one in futures]

    def test_events_nobody_listens_to_are_kept_or_reported_by_id_and_topic(self, place: Place, bus: Bus) -> None:
        topic, nowhere = f"batch.{place.mark}", f"nowhere.{place.mark}"
        with pytest.raises(BatchFailed, match=nowhere) as failed, bus.batch():
            first = bus.publish(topic, 1)
            kept = bus.publish(nowhere, 2, wait=False)
            bus.publish(nowhere, 3, unrouted="raise", id=f"three-{place.mark}")
            late = bus.publish(topic, 4, delay=0.2)
            last = bus.publish(topic, 5)
        ((id, name, error),) = failed.value.failures
        assert (id, name, type(error)) == (f"three-{place.mark}", nowhere, errors.Unroutable)
        assert failed.value.ids == (id,)
        assert kept.result().subscriptions == 0
        assert kept.id in [one for one, _ in waiting(place, "events.unrouted")]
        got: list[Any] = []

        def came() -> bool:
            got.extend(waiting(place, f"{bus.service}.h"))
            return len(got) >= 3

        wait_for(came)
        assert Counter(one for one, _ in got) == Counter([first.id, late.id, last.id])

    def test_an_error_in_the_block_leaves_what_was_published(self, place: Place, bus: Bus) -> None:
        topic, nowhere = f"batch.{place.mark}", f"nowhere.{place.mark}"
        with pytest.raises(ZeroDivisionError), bus.batch():
            bus.publish(topic, 1)
            raise ZeroDivisionError
        with pytest.raises(BatchFailed) as failed, bus.batch():
            bus.publish(topic, 2)
            bus.publish(nowhere, 3, unrouted="raise")
            raise ZeroDivisionError
        assert isinstance(failed.value.__cause__, ZeroDivisionError)
        with pytest.raises(KeyboardInterrupt) as stopped, bus.batch():
            bus.publish(nowhere, 4, unrouted="raise")
            raise KeyboardInterrupt
        assert nowhere in stopped.value.__notes__[0]
        assert [data for _, data in waiting(place, f"{bus.service}.h")] == [1, 2]

    def test_a_block_concerns_its_thread_and_events_as_functions_too(self, place: Place, bus: Bus) -> None:
        topic = f"batch.{place.mark}"
        happened = bus.event(topic)(lambda number: None)
        others: list[Published] = []
        with bus.batch(), bus.batch():
            other = threading.Thread(target=lambda: others.append(bus.publish(topic, 1)))
            other.start()
            other.join()
            assert happened(2).subscriptions is None
            assert others[0].subscriptions == 1
        got = [data for _, data in waiting(place, f"{bus.service}.h")]
        assert got == [1, {"number": 2}]

    def test_data_that_cannot_be_sent_raise_at_once(self, place: Place, bus: Bus) -> None:
        with bus.batch(), pytest.raises(errors.InvalidPayload):
            bus.publish(f"batch.{place.mark}", float("nan"))

    def test_a_client_closed_in_the_block_refuses_the_rest(self, place: Place, bus: Bus) -> None:
        client = place.client()
        with pytest.raises(errors.RestanteError, match="closed"), client.batch():
            client.publish(f"batch.{place.mark}", 1)
            client.close()
            client.publish(f"batch.{place.mark}", 2)

    async def test_a_block_with_await_is_the_same(self, place: Place, bus: Bus) -> None:
        topic, nowhere = f"batch.{place.mark}", f"nowhere.{place.mark}"
        async with aio(place) as client:
            async with client.batch():
                sent = [await client.publish(topic, number) for number in range(700)]
            assert {one.subscriptions for one in sent} == {None}
            assert {id for id, _ in waiting(place, f"{bus.service}.h")} == {one.id for one in sent}
            with pytest.raises(BatchFailed) as failed:
                async with client.batch():
                    await client.publish(topic, 1)
                    await client.publish(nowhere, 2, unrouted="raise", id=f"two-{place.mark}")
                    raise ZeroDivisionError
            assert failed.value.ids == (f"two-{place.mark}",)
            assert isinstance(failed.value.__cause__, ZeroDivisionError)
            task = await client.publish(topic, 3, wait=False)
            made = await task
            assert (made.id, made.subscriptions) == (task.get_name(), 1)
        assert [data for _, data in waiting(place, f"{bus.service}.h")] == [1, 3]


class TestFutures:
    def test_a_future_tells_what_publish_would_have(self, place: Place, bus: Bus) -> None:
        topic, nowhere = f"batch.{place.mark}", f"nowhere.{place.mark}"
        future = bus.publish(topic, 1, wait=False)
        assert isinstance(future, Publishing)
        assert future.result(30) == Published(future.id, 1)
        assert (future.topic, future.cancel(), future.exception()) == (topic, False, None)
        with pytest.raises(errors.Unroutable):
            bus.publish(nowhere, 2, wait=False, unrouted="raise").result()

    def test_futures_are_settled_without_anybody_asking(self, place: Place, bus: Bus) -> None:
        futures = [bus.publish(f"batch.{place.mark}", number, wait=False) for number in range(20)]
        done, left = wait_all(futures, timeout=PATIENCE)
        assert (len(done), len(left)) == (20, 0)

    def test_a_failure_nobody_asks_for_is_logged(
        self, place: Place, bus: Bus, caplog: pytest.LogCaptureFixture
    ) -> None:
        future = bus.publish(f"nowhere.{place.mark}", 2, wait=False, unrouted="raise")
        wait_for(future.done)
        assert f"not published topic=nowhere.{place.mark} id={future.id}" in caplog.text

    def test_closing_a_client_waits_for_what_is_on_its_way(self, place: Place, bus: Bus) -> None:
        with place.client() as client:
            futures = [client.publish(f"batch.{place.mark}", number, wait=False) for number in range(200)]
        assert all(one.done() for one in futures)
        assert place.waiting("billing", "h") == 200

    def test_threads_may_share_a_client(self, place: Place, bus: Bus) -> None:
        ids: list[str] = []

        def publish(client: BusClient) -> None:
            with client.batch():
                ids.extend(client.publish(f"batch.{place.mark}", number).id for number in range(200))

        with place.client() as client:
            threads = [threading.Thread(target=publish, args=(client,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert Counter(id for id, _ in waiting(place, f"{bus.service}.h")) == Counter(ids)


class TestFaults:
    def test_a_broker_killed_in_the_middle_of_a_block_loses_nothing(self, place: Place, bus: Bus) -> None:
        count, half = 2000, threading.Event()
        ids: list[str] = []

        def publish() -> None:
            with place.client(patience=60) as client, client.batch():
                for number in range(count):
                    ids.append(client.publish(f"batch.{place.mark}", number).id)
                    if number == count // 2:
                        half.set()

        publisher = threading.Thread(target=publish)
        publisher.start()
        half.wait()
        place.kill()
        publisher.join()
        got = Counter(id for id, _ in waiting(place, f"{bus.service}.h"))
        assert len(ids) == count
        assert got.keys() == set(ids)

    def test_connections_that_are_cut_lose_nothing(self, place: Place, bus: Bus) -> None:
        port = place.rabbit.port if isinstance(place, OnRabbitMQ) else place.server.port  # type: ignore[attr-defined]
        with FaultProxy(port, raw=True) as proxy:
            url = place.url.replace(f":{port}", f":{proxy.port}")
            ids: list[str] = []
            with BusClient(url, patience=60, store=place.options.get("store")) as client, client.batch():
                for number in range(1500):
                    ids.append(client.publish(f"batch.{place.mark}", number).id)
                    if number % 300 == 150:
                        proxy.reset_all()
        assert {id for id, _ in waiting(place, f"{bus.service}.h")} == set(ids)

    async def test_connections_that_are_cut_lose_nothing_with_await(self, place: Place, bus: Bus) -> None:
        port = place.rabbit.port if isinstance(place, OnRabbitMQ) else place.server.port  # type: ignore[attr-defined]
        with FaultProxy(port, raw=True) as proxy:
            place.url = place.url.replace(f":{port}", f":{proxy.port}")
            ids: list[str] = []
            async with aio(place, patience=60) as client, client.batch():
                for number in range(400):
                    ids.append((await client.publish(f"batch.{place.mark}", number)).id)
                    if number % 100 == 50:
                        proxy.reset_all()
            place.url = place.url.replace(f":{proxy.port}", f":{port}")
        assert {id for id, _ in waiting(place, f"{bus.service}.h")} == set(ids)

    @pytest.mark.parametrize("scheme", ["redis", "amqp"])
    def test_a_broker_that_stays_away_is_reported_with_every_event(self, scheme: str) -> None:
        url = f"{scheme}://127.0.0.1:{closed_port()}/{'0' if scheme == 'redis' else '/'}"
        ids: list[str] = []
        with BusClient(url, patience=0.2) as client:
            with pytest.raises(BatchFailed) as failed, client.batch():
                for number in range(2 * confirms.WINDOW):
                    ids.append(client.publish("a.b", number).id)
            assert len(ids) < 2 * confirms.WINDOW  # the block ends early: publish says that the broker is away
            assert failed.value.ids == tuple(ids)
            assert {type(error) for _, _, error in failed.value.failures} == {errors.Unavailable}
            assert isinstance(failed.value.__cause__, errors.Unavailable)
            with pytest.raises(errors.Unavailable):
                client.publish("a.b", 1, wait=False).result()

    @pytest.mark.parametrize("scheme", ["redis", "amqp"])
    async def test_it_is_with_await_too_and_a_client_goes_on(
        self, scheme: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        url = f"{scheme}://127.0.0.1:{closed_port()}/{'0' if scheme == 'redis' else '/'}"
        async with AsyncBusClient(url, patience=0.2) as client:
            with pytest.raises(BatchFailed) as failed:
                async with client.batch():
                    ids = [(await client.publish("a.b", number)).id for number in range(3)]
            assert sorted(failed.value.ids) == sorted(ids)
            for _ in range(2):
                with pytest.raises(errors.Unavailable):
                    await (await client.publish("a.b", 1, wait=False))
            await client.publish("a.b", 1, wait=False, id="unasked")
        assert "not published topic=a.b id=unasked" in caplog.text


class TestOnRabbitMQ:
    @pytest.fixture
    def place(self, request: pytest.FixtureRequest, redis: Any, tmp_path: Any) -> Place:
        return OnRabbitMQ(tmp_path, request.getfixturevalue("rabbit"), redis)

    def test_no_more_than_the_window_is_on_its_way(
        self, place: Place, bus: Bus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(confirms, "WINDOW", 5)
        most: list[int] = []
        write = confirms.Confirms._write

        def counted(self: confirms.Confirms, entry: Any) -> None:
            write(self, entry)
            most.append(len(self._pending))

        monkeypatch.setattr(confirms.Confirms, "_write", counted)
        with bus.batch():
            for number in range(100):
                bus.publish(f"batch.{place.mark}", number)
        assert 1 < max(most) <= 5
        assert [data for _, data in waiting(place, f"{bus.service}.h")] == list(range(100))

    def test_an_event_that_a_full_queue_refuses_fails_alone(self, place: OnRabbitMQ, bus: Bus) -> None:
        small, topic = f"small-{place.mark}", f"full.{place.mark}"

        def declare(channel: Any) -> None:
            full = {"x-max-length": 2, "x-overflow": "reject-publish"}
            channel.queue_declare(small, durable=True, auto_delete=False, arguments=full)
            channel.queue_bind(small, "events.known", topic)

        place.channel(declare)
        with pytest.raises(BatchFailed) as failed, bus.batch():
            ids = [bus.publish(topic, number).id for number in range(4)]
            fine = bus.publish(f"batch.{place.mark}", "fine", wait=False)
        assert failed.value.ids == tuple(ids[2:])
        assert {type(error) for _, _, error in failed.value.failures} == {errors.QueueFull}
        assert fine.result().subscriptions == 1
        with pytest.raises(errors.QueueFull):
            bus.publish_many([(topic, 1)])
        place.channel(lambda channel: channel.queue_delete(small))

    def test_an_event_that_ends_every_connection_fails_alone(self, place: Place, bus: Bus) -> None:
        with pytest.raises(BatchFailed) as failed, bus.batch():
            before = [bus.publish(f"batch.{place.mark}", number).id for number in range(5)]
            # Properties must fit into one frame, which RabbitMQ bounds.
            bus.publish(f"batch.{place.mark}", "x", headers={"large": "x" * 200_000}, id=f"large-{place.mark}")
            after = [bus.publish(f"batch.{place.mark}", number).id for number in range(5)]
        assert failed.value.ids == (f"large-{place.mark}",)
        assert "closes every connection" in str(failed.value)
        assert {id for id, _ in waiting(place, f"{bus.service}.h")} == {*before, *after}

    def test_an_event_that_cannot_be_written_fails_alone(self, place: Place, bus: Bus) -> None:
        with pytest.raises(BatchFailed) as failed, bus.batch():
            before = [bus.publish(f"batch.{place.mark}", number).id for number in range(5)]
            # JSON has numbers for which AMQP has no word.
            bus.publish(f"batch.{place.mark}", "x", headers={"large": 2**63}, id=f"large-{place.mark}")
            after = [bus.publish(f"batch.{place.mark}", number).id for number in range(5)]
        assert [(id, type(error)) for id, _, error in failed.value.failures] == [
            (f"large-{place.mark}", errors.InvalidInput)
        ]
        assert {id for id, _ in waiting(place, f"{bus.service}.h")} == {*before, *after}

    def test_exchanges_that_are_missing_are_declared(self, place: OnRabbitMQ) -> None:
        with place.rabbit.virtual_host(f"empty-{place.mark}") as url, BusClient(url) as client:
            with client.batch():
                futures = [client.publish("a.b", number, wait=False) for number in range(3)]
            assert [one.result().subscriptions for one in futures] == [0, 0, 0]
            with amqp.Connection(f"127.0.0.1:{place.rabbit.port}", virtual_host=f"empty-{place.mark}") as connection:
                assert connection.channel().queue_declare("events.unrouted", passive=True).message_count == 3

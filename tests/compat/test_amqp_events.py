"""Programs written after celery-amqp-events' documents run on both brokers with nothing but the import changed."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import Any

import pytest

from restante.bus import BusClient, Published
from restante.bus.adoption import POSITIONAL
from restante.bus.dead import DeadFilter, open_dead_letters
from restante.bus.envelope import new_envelope
from restante.compat.amqp_events import defaults
from restante.compat.amqp_events.celery import EventsCelery, events_app
from restante.core.errors import InvalidInput, InvalidPayload
from tests.celery.workers import wait_for
from tests.compat.programs import Programs
from tests.harness.deadlines import PATIENCE

#: The documents' set-up, events and handlers, in our own words and numbers.
SHOP = {
    "shop/celery.py": """
import os

from amqp_events.celery import events_app

app = events_app(
    os.environ["SERVICE"],
    imports=["shop.tasks"],
    broker_url=os.environ["BROKER"],
)
""",
    "shop/events.py": """
from shop.celery import app


@app.event("shop.number.drawn")
def number_drawn(number: int):
    if number % 2:
        raise ValueError("the number is odd")


@app.event("shop.order.placed")
def order_placed(order, *lines, amount=None, when=None):
    pass


@app.event("shop.order.shipped")
def order_shipped(order):
    pass


@app.event("shop.parcel.lost")
def parcel_lost(parcel):
    pass


@app.event("shop.parcel.found")
def parcel_found(parcel, by="nobody"):
    pass
""",
    "shop/tasks.py": """
import os

from celery import Task
from shop import events
from shop.celery import app
from ledger import mended, note

me = os.environ["SERVICE"]


@app.handler("shop.number.drawn")
def on_number_drawn(drawn: int):
    note("drawn", service=me, number=drawn)


@app.handler("shop.order.placed")
def on_order_placed(order, first, second, amount, when):
    note("placed", service=me, facts=repr((order, first, second, amount, when)))
    events.order_shipped(order)


@events.order_shipped.handler
def on_order_shipped(order):
    note("shipped", service=me, order=order)


@app.handler("shop.parcel.lost", bind=True)
def on_parcel_lost(self, parcel):
    note("lost", service=me, parcel=parcel, retries=self.request.retries)
    if not mended():
        raise ConnectionError("the carrier does not answer")


class ParcelFound(Task):
    max_retries = 1

    def run(self, parcel, by):
        note("found", service=me, parcel=parcel, by=by, retries=self.request.retries, own=self.kind())
        raise self.retry(countdown=0.1)

    def kind(self):
        return ParcelFound.__name__ if isinstance(self, ParcelFound) else ""


app.handler("shop.parcel.found")(ParcelFound)
""",
}


@pytest.fixture(scope="module")
def shop(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Two services of the same program, each with its worker."""
    made = Programs(tmp_path_factory.mktemp("shop"), SHOP, "amqp_events", broker, AMQP_EVENTS_MAX_RETRIES="2")
    try:
        for service in ("till", "audit"):
            made.worker("shop.celery", fresh=service == "till", SERVICE=service)
        yield made
    finally:
        made.close()


def test_an_event_reaches_every_service_once_and_a_failing_validation_sends_nothing(shop: Programs) -> None:
    said = shop.run(
        """
from shop.events import number_drawn

for number in (4, 5, 6):
    try:
        print(type(number_drawn(number)).__name__)
    except ValueError:
        print("odd")
""",
        fresh=True,
        SERVICE="till",
    )
    assert said.split() == ["str", "odd", "str"]
    shop.wait_rows(4, "drawn")
    for service in ("till", "audit"):
        assert sorted(row["number"] for row in shop.rows("drawn", service=service)) == [4, 6]


def test_arguments_are_spread_as_they_were_given_and_a_handler_may_publish(shop: Programs) -> None:
    shop.run(
        """
from datetime import datetime
from decimal import Decimal

from shop.events import order_placed

order_placed(7, "lamp", "bulb", when=datetime(2026, 1, 2), amount=Decimal("19.90"))
""",
        SERVICE="till",
    )
    expected = "(7, 'lamp', 'bulb', Decimal('19.90'), datetime.datetime(2026, 1, 2, 0, 0))"
    placed = shop.wait_rows(2, "placed")
    assert {(row["service"], row["facts"]) for row in placed} == {("till", expected), ("audit", expected)}
    # Each service's handler published once, and each publication reaches both services.
    shop.wait_rows(4, "shipped", order=7)


def test_an_event_of_the_bus_itself_reaches_the_handlers_by_name(shop: Programs) -> None:
    with BusClient(shop.broker, source="native") as client:
        client.publish("shop.order.shipped", {"order": 99})
    rows = shop.wait_rows(2, "shipped", order=99)
    assert {row["service"] for row in rows} == {"till", "audit"}


def test_a_class_handler_has_its_own_retries_and_is_itself(shop: Programs) -> None:
    shop.run("from shop.events import parcel_found; parcel_found('p1', by='a dog')", SERVICE="till")
    rows = shop.wait_rows(4, "found", parcel="p1")
    for service in ("till", "audit"):
        tries = [(row["retries"], row["own"], row["by"]) for row in rows if row["service"] == service]
        assert tries == [(0, "ParcelFound", "a dog"), (1, "ParcelFound", "a dog")]


def test_a_failing_event_is_retried_then_archived_and_replayed_to_its_service_alone(shop: Programs) -> None:
    shop.run("from shop.events import parcel_lost; parcel_lost(parcel='p2')", SERVICE="till")
    shop.wait_rows(6, "lost", parcel="p2")
    for service in ("till", "audit"):
        assert [row["retries"] for row in shop.rows("lost", parcel="p2", service=service)] == [0, 1, 2]
        with open_dead_letters(shop.broker, service) as letters:
            mine = DeadFilter(subscription=f"{service}.shop-parcel-lost")
            wait_for(lambda: letters.list(mine), PATIENCE)  # noqa: B023 - waited for in this turn
            (one,) = letters.list(mine)
        assert (one.topic, one.attempts, one.error_class) == ("shop.parcel.lost", 3, "ConnectionError")
        assert json.loads(one.data) == {"parcel": "p2"}
    shop.mend()
    with open_dead_letters(shop.broker, "audit") as letters:
        assert letters.replay(DeadFilter(subscription="audit.shop-parcel-lost")) == 1
    rows = shop.wait_rows(7, "lost", parcel="p2")
    assert [row["service"] for row in rows[6:]] == ["audit"]


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Sets variables as they would be when the program starts."""

    def given(**names: str) -> None:
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        importlib.reload(defaults)

    yield given
    monkeypatch.undo()
    importlib.reload(defaults)


def app(**settings: Any) -> EventsCelery:
    return events_app("till", **{"broker_url": "amqp://guest:guest@127.0.0.1:1//", **settings})


class TestWithoutABroker:
    def test_without_options_the_retries_are_ten_at_doubling_delays(self) -> None:
        made = app()
        made.handler("shop.number.drawn")(lambda number: None)
        retry_rule = made.subscriptions["till.shop-number-drawn"].retry_rule
        delays = [retry_rule.delay(attempts, OSError()) for attempts in range(1, 12)]
        assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, None]
        assert made.conf.task_acks_late
        assert made.conf.task_reject_on_worker_lost
        assert not made.conf.task_acks_on_failure_or_timeout
        assert made.conf.broker_transport_options["confirm_publish"]
        assert made.conf.result_backend is None

    @pytest.mark.parametrize(
        ("word", "nearest"), [("broker_ulr", "broker_url"), ("import", "imports"), ("task_ack_late", "task_acks_late")]
    )
    def test_an_unknown_keyword_is_refused_with_the_nearest_name(self, word: str, nearest: str) -> None:
        with pytest.raises(InvalidInput, match=f"no option '{word}': did you mean {nearest}"):
            app(**{word: "x"})

    def test_queues_and_routes_of_ones_own_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="task_queues cannot be set"):
            app(task_queues=["x"])

    def test_settings_of_celery_hold(self) -> None:
        made = app(worker_prefetch_multiplier=7, imports=["shop.tasks"])
        assert (made.conf.worker_prefetch_multiplier, list(made.conf.imports)) == (7, ["shop.tasks"])

    def test_a_second_handler_of_an_event_is_refused(self) -> None:
        made = app()
        made.handler("a.b")(lambda: None)
        with pytest.raises(RuntimeError, match="already registered"):
            made.handler("a.b")(lambda: None)

    def test_a_broker_that_is_set_later_is_refused_and_the_password_is_not_shown(self) -> None:
        made = app()
        made.conf.broker_url = "amqp://me:secret@elsewhere//"
        event = made.event("a.b")(lambda: None)
        with pytest.raises(InvalidInput, match="events_app") as caught:
            event()
        assert "secret" not in str(caught.value)
        with pytest.raises(InvalidInput, match="events_app"):
            made.declare()

    def test_data_that_json_has_no_word_for_is_refused_before_sending(self) -> None:
        event = app().event("a.b")(lambda one: None)
        with pytest.raises(InvalidPayload, match=r"a\.b"):
            event(object())

    def test_a_service_of_the_bus_itself_gets_arguments_by_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = app()
        told: list[Any] = []

        def publish(*args: Any, **more: Any) -> Published:
            told.append((*args, more))
            return Published("id", 1)

        monkeypatch.setattr(made, "publish", publish)

        @made.event("shop.order.paid")
        def order_paid(order: int, amount: int) -> None:
            pass

        assert order_paid(42, amount=1990) == "id"
        order_paid(amount=5, order=7)
        assert told == [
            ("shop.order.paid", {"order": 42, "amount": 1990}, {"headers": {POSITIONAL: 1}}),
            ("shop.order.paid", {"amount": 5, "order": 7}, {"headers": None}),
        ]

    def test_what_an_event_is_called_with_is_what_its_handler_gets(self, monkeypatch: pytest.MonkeyPatch) -> None:
        made = app()
        got: list[Any] = []

        def publish(topic: str, data: Any, headers: Any = None) -> Published:
            envelope = new_envelope(topic, "tests", headers=headers)
            made.subscriptions["till.shop-order-placed"].function(None, data, envelope)
            return Published(envelope.id, 1)

        monkeypatch.setattr(made, "publish", publish)

        @made.event("shop.order.placed")
        def order_placed(order: int, *lines: str, amount: int) -> None:
            if amount < 0:
                raise ValueError("no such amount")

        @made.handler("shop.order.placed")
        def on_order_placed(number: int, *parts: str, amount: Decimal) -> None:
            got.append((number, parts, amount))

        order_placed(7, "lamp", "bulb", amount=Decimal("19.90"))
        with pytest.raises(ValueError, match="no such amount"):
            order_placed(8, amount=-1)
        assert got == [(7, ("lamp", "bulb"), Decimal("19.90"))]

    def test_an_event_says_its_name_and_app(self) -> None:
        made = app()

        @made.event("a.b")
        def happened() -> None:
            """Something happened."""

        assert (happened.name, happened.app, happened.__doc__) == ("a.b", made, "Something happened.")

    @pytest.mark.parametrize(
        ("env", "says"),
        [
            ({"AMQP_EVENTS_MAX_RETRY": "3"}, "did you mean AMQP_EVENTS_MAX_RETRIES"),
            ({"AMQP_EVENTS_MAX_RETRIES": "many"}, "AMQP_EVENTS_MAX_RETRIES must be a whole number"),
            ({"AMQP_EVENTS_ARCHIVED_MESSAGE_TTL": "0"}, "must both be 0"),
        ],
    )
    def test_a_bad_setting_of_the_environment_is_refused(
        self, environment: Callable[..., None], env: dict[str, str], says: str
    ) -> None:
        def start() -> None:
            environment(**env)
            app()

        with pytest.raises(InvalidInput, match=says):
            start()

    def test_the_settings_of_the_archive_become_those_of_the_topology(self, environment: Callable[..., None]) -> None:
        def archive() -> dict[str, Any] | None:
            found = app().worker_backend.topology().queues  # type: ignore[attr-defined]  # of RabbitWorker
            return next((dict(one.arguments) for one in found if one.name == "till.archive"), None)

        names = ("AMQP_EVENTS_ARCHIVED_MESSAGE_TTL", "AMQP_EVENTS_ARCHIVED_QUEUE_LENGTH")
        environment(**dict(zip(names, ("60000", "50"), strict=True)))
        found = archive()
        assert found is not None
        assert (found["x-message-ttl"], found["x-max-length"]) == (60_000, 50)
        environment(**dict.fromkeys(names, "0"))
        assert archive() is None

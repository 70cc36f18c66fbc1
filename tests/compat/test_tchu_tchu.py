"""Programs written after tchu-tchu's documents run on both brokers with nothing but the import changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from celery import Celery as PlainCelery
from kombu import Queue
from pydantic import BaseModel

import restante
from restante.bus.dead import DeadFilter, open_dead_letters
from restante.compat.tchu_tchu import TchuClient, TchuEvent, create_topic_dispatcher, registry, subscribe
from restante.compat.tchu_tchu.django import Celery, setup_celery_queue
from restante.compat.tchu_tchu.serverless_producer import ServerlessProducer
from restante.compat.tchu_tchu.utils.error_handling import (
    PublishError,
    SerializationError,
    SubscriptionError,
    TchuRPCException,
)
from restante.compat.tchu_tchu.utils.json_encoder import plain
from restante.core.errors import InvalidInput
from tests.celery.workers import wait_for
from tests.compat.programs import Programs
from tests.harness.deadlines import PATIENCE
from tests.harness.servers import RedisServer

#: The documents' three ways to set up a service, and their examples of events, calls and handlers.
TOWN = {
    "settings.py": """
import os

from django.conf import settings

if not settings.configured:
    settings.configure()

CELERY_BROKER_URL = os.environ["BROKER"]
CELERY_TASK_SERIALIZER = "json"
""",
    "shared/events.py": """
import settings
from rest_framework import serializers
from tchu_tchu.events import TchuEvent


class InvitationSerializer(serializers.Serializer):
    company_id = serializers.IntegerField()
    user = serializers.JSONField(required=False)
    company = serializers.JSONField(required=False)
    user_company = serializers.JSONField(required=False)


class InvitationAccepted(TchuEvent):
    class Meta:
        topic = "accounts.company.invite.accepted"
        request_serializer_class = InvitationSerializer


class SecretSerializer(serializers.Serializer):
    number = serializers.IntegerField()

    def __init__(self, *args, skip_authorization=False, skip_reason=None, **kwargs):
        self.skipped = skip_authorization
        super().__init__(*args, **kwargs)

    def validate(self, attrs):
        if not self.skipped and "request" not in self.context:
            raise serializers.ValidationError("who are you?")
        return attrs


class SecretTold(TchuEvent):
    class Meta:
        topic = "secret.told"
        request_serializer_class = SecretSerializer


class PaymentRequest(serializers.Serializer):
    user_id = serializers.IntegerField()
    amount = serializers.DecimalField(max_digits=10, decimal_places=2)


class PaymentDone(serializers.Serializer):
    transaction_id = serializers.CharField()
    amount = serializers.DecimalField(max_digits=10, decimal_places=2)
    status = serializers.CharField()


class PaymentRefused(serializers.Serializer):
    success = serializers.BooleanField()
    error_message = serializers.CharField()
    error_code = serializers.CharField()
    error_details = serializers.JSONField(required=False, default=dict)


class ProcessPayment(TchuEvent):
    class Meta:
        topic = "rpc.payments.process"
        request_serializer_class = PaymentRequest
        response_serializer_class = PaymentDone
        error_serializer_class = PaymentRefused
""",
    "users/celery.py": """
import os
from types import SimpleNamespace

from celery import Celery
from tchu_tchu.django import setup_celery_queue
from tchu_tchu.events import TchuEvent

app = Celery("users")
app.conf.broker_url = os.environ["BROKER"]


def create_context(event_data):
    user_data = event_data.get("user")
    if not user_data:
        return {}
    return {"request": SimpleNamespace(user=SimpleNamespace(**user_data))}


TchuEvent.set_context_helper(create_context)
setup_celery_queue(app, queue_name="users_queue", subscriber_modules=["users.subscribers"])
""",
    "users/subscribers.py": """
from ledger import note
from shared.events import InvitationAccepted, ProcessPayment, SecretTold
from tchu_tchu import TchuClient, TchuRPCException, subscribe


@subscribe("user.created")
def welcome(data):
    note("welcome", data=data)
    TchuClient().publish("user.welcomed", {"user_id": data["user_id"]})


def handle_invitation(event):
    user = event.request_context["request"].user.email if event.is_authorized() else None
    note("invited", company=event.get("company_id"), again=event["company_id"], there="nothing" in event, user=user)
    raise ConnectionError("the directory is away")


InvitationAccepted(
    handler=handle_invitation,
    celery_options={
        "autoretry_for": (ConnectionError, TimeoutError),
        "retry_backoff": True,
        "retry_backoff_max": 600,
        "retry_jitter": False,
        "max_retries": 1,
    },
).subscribe()

SecretTold(handler=lambda event: note("secret", number=event["number"])).subscribe()


def process_payment(event):
    if event["amount"] <= 0:
        details = {"amount": str(event["amount"])}
        raise TchuRPCException(message="Amount must be positive", code="INVALID_AMOUNT", details=details)
    return {"transaction_id": f"t{event['user_id']}", "amount": event["amount"], "status": "completed"}


ProcessPayment(handler=process_payment).subscribe()


class OutOfStock(TchuRPCException):
    def __init__(self, sku):
        self.sku = sku
        super().__init__(message="none left", code="STOCK")

    def to_response_dict(self):
        return {"sku": self.sku, "left": 0}


@subscribe("rpc.stock.get")
def stock(data):
    note("stock", sku=data["sku"])
    if data["sku"] == "unicorn":
        raise OutOfStock("unicorn")
    if data["sku"] == "bug":
        raise KeyError("shelf")
    return {"left": 3}
""",
    "notifications/celery.py": """
from tchu_tchu.django import Celery

app = Celery("notifications", include=["notifications.subscribers"])
app.config_from_object("settings", namespace="CELERY")
app.message_broker(queue_name="notifications_queue")
""",
    "notifications/subscribers.py": """
from ledger import note
from tchu_tchu.subscriber import subscribe


@subscribe("user.created")
def send_welcome_email(event):
    note("email", to=event["email"])
    if event.get("fails"):
        raise RuntimeError("the mail server said no")


@subscribe(
    "user.welcomed",
    celery_options={"autoretry_for": (ConnectionError,), "retry_backoff": 1, "max_retries": 3},
)
def count(data):
    note("counted", data=data)
    raise ValueError("not one of those that are tried again")


@subscribe("rpc.stock.get")
def stock(data):
    note("stock", sku=data["sku"])
    return {"left": 3}
""",
    "analytics/celery.py": """
import os

from celery import Celery
from kombu import Exchange, Queue, binding
from tchu_tchu import create_topic_dispatcher, get_subscribed_routing_keys

app = Celery("analytics", broker=os.environ["BROKER"])
app.autodiscover_tasks(["analytics.subscribers"])

tchu_exchange = Exchange("tchu_events", type="topic", durable=True)
all_routing_keys = get_subscribed_routing_keys(celery_app=app)
all_bindings = [binding(tchu_exchange, routing_key=key) for key in all_routing_keys]
app.conf.task_queues = (Queue("analytics_queue", exchange=tchu_exchange, bindings=all_bindings, durable=True),)
app.conf.task_routes = {"tchu_tchu.dispatch_event": {"queue": "analytics_queue"}}
dispatcher = create_topic_dispatcher(app)
""",
    "analytics/subscribers.py": """
from ledger import note
from tchu_tchu import subscribe


@subscribe("user.*")
def track_user_event(event):
    note("tracked", data=event)


@subscribe("#")
def track_every_event(event):
    note("every", data=event)
""",
    "web/celery.py": """
import os

from celery import Celery

app = Celery("web", broker=os.environ["BROKER"])
""",
}
#: The start of a program that only publishes and calls: Celery's current app names the broker.
WEB = "import web.celery\nfrom tchu_tchu import TchuClient\nclient = TchuClient()\n".replace(
    "from tchu_tchu", "from restante.compat.tchu_tchu"
)


@pytest.fixture(scope="module")
def town(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Three services, each set up in another documented way, with their workers."""
    made = Programs(tmp_path_factory.mktemp("town"), TOWN, "tchu_tchu", broker)
    try:
        for service in ("users", "notifications", "analytics"):
            made.worker(f"{service}.celery", fresh=service == "users")
        yield made
    finally:
        made.close()


def dead(town: Programs, service: str, handler: str, count: int) -> list[Any]:
    choice = DeadFilter(subscription=f"{service}.{handler}")
    with open_dead_letters(town.broker, service) as letters:
        wait_for(lambda: len(letters.list(choice)) >= count, PATIENCE, lambda: str(letters.list()))
        return letters.list(choice)


def test_a_broadcast_reaches_every_service_and_patterns_count_words(town: Programs) -> None:
    town.run(WEB + "client.publish('user.created', {'user_id': 1, 'email': 'ann@example.org'})")
    town.wait_rows(1, "welcome", data={"user_id": 1, "email": "ann@example.org"})
    town.wait_rows(1, "email", to="ann@example.org")
    # The handler's own event, published from the worker by the current app.
    town.wait_rows(1, "counted", data={"user_id": 1})
    town.wait_rows(1, "tracked", data={"user_id": 1})
    town.run(WEB + "client.publish('user.profile.changed', {'user_id': 2})")
    town.wait_rows(1, "every", data={"user_id": 2})
    assert town.rows("tracked", data={"user_id": 2}) == [], "* is one word"
    assert len(town.rows("welcome", data={"user_id": 1, "email": "ann@example.org"})) == 1


def test_without_options_a_failure_is_not_retried_and_is_kept(town: Programs) -> None:
    town.run(WEB + "client.publish('user.created', {'user_id': 3, 'email': 'bob@example.org', 'fails': True})")
    found = dead(town, "notifications_queue", "notifications-subscribers-send_welcome_email", 1)
    assert [(one.attempts, one.error_class) for one in found] == [(1, "RuntimeError")]
    assert len(town.rows("email", to="bob@example.org")) == 1
    counted = dead(town, "notifications_queue", "notifications-subscribers-count", 1)
    assert {(one.attempts, one.error_class) for one in counted} == {(1, "ValueError")}, "only the named errors retry"


def test_an_events_handler_gets_an_instance_with_context_and_its_options_retry(town: Programs) -> None:
    town.run(
        WEB
        + """
from shared.events import InvitationAccepted

sender = {"user": {"id": 1, "email": "cleo@example.org"}, "company": {"id": 5}, "user_company": {"id": 9}}
event = InvitationAccepted()
event.serialize_request({"company_id": 67, **sender})
event.publish()
"""
    )
    rows = town.wait_rows(2, "invited", company=67)
    assert (
        rows
        == [
            {"kind": "invited", "company": 67, "again": 67, "there": False, "user": "cleo@example.org"},
        ]
        * 2
    )
    (one,) = dead(town, "users_queue", "shared-events-InvitationAccepted-handle_invitation", 1)
    assert (one.attempts, one.error_class, json.loads(one.data)["company_id"]) == (2, "ConnectionError", 67)


def test_leaving_out_the_sender_skips_no_check(town: Programs) -> None:
    town.run(
        WEB
        + """
client.publish("secret.told", {"number": 1})
client.publish("secret.told", {"number": 2, "user": {"id": 1}})
"""
    )
    town.wait_rows(1, "secret", number=2)
    (one,) = dead(town, "users_queue", "shared-events-SecretTold--lambda-", 1)
    assert (json.loads(one.data), one.error_class) == ({"number": 1}, "SerializationError")
    assert town.rows("secret", number=1) == []


def test_a_call_is_answered_by_one_service_and_refusals_are_data(town: Programs) -> None:
    said = town.run(
        WEB
        + """
import json

from restante.compat.tchu_tchu.utils.error_handling import PublishError
from shared.events import ProcessPayment

event = ProcessPayment()
event.serialize_request({"user_id": 123, "amount": 50.00})
print(event.call(timeout=60))
event.serialize_request({"user_id": 123, "amount": -1})
answer = event.call(timeout=60)
print(answer["error_message"], answer["error_code"], answer["error_details"])

answers = [client.call("rpc.stock.get", {"sku": "lamp"}, timeout=60) for _ in range(4)]
print(json.dumps(answers))
try:
    client.call("rpc.nobody.home", {}, timeout=60)
except PublishError as error:
    print(error)
"""
    ).splitlines()
    assert said == [
        "{'transaction_id': 't123', 'amount': Decimal('50.00'), 'status': 'completed'}",
        "Amount must be positive INVALID_AMOUNT {'amount': '-1.00'}",
        json.dumps([{"left": 3}] * 4),
        "No handlers found for routing key 'rpc.nobody.home'",
    ]
    assert len(town.rows("stock", sku="lamp")) == 4, "each call ran in one of the two services"


def test_a_handlers_own_exception_and_its_bug_reach_the_caller_apart(town: Programs) -> None:
    said = town.run(
        WEB
        + """
from restante.compat.tchu_tchu.utils.error_handling import PublishError

seen = set()
for turn in range(20):
    # Services take calls in turns: an odd number now and then, or each would always get the same of the two.
    for _ in range(1 + turn % 2):
        answer = client.call("rpc.stock.get", {"sku": "unicorn"}, timeout=60)
    try:
        client.call("rpc.stock.get", {"sku": "bug"}, timeout=60)
    except PublishError as error:
        seen.add(str(error))
    if answer["left"] == 0:
        seen.add(str(answer))
    if len(seen) == 2:
        break
print(sorted(seen))
"""
    )
    assert said == "[\"RPC call failed: users_queue failed: KeyError: 'shelf'\", \"{'sku': 'unicorn', 'left': 0}\"]\n"


def test_a_program_without_an_app_publishes_too(town: Programs) -> None:
    said = town.run(
        """
import os

from restante.compat.tchu_tchu.serverless_producer import ServerlessClient, ServerlessProducer

with ServerlessClient(broker_url=os.environ["BROKER"]) as client:
    client.publish("point.submitted", {"value": 456.78})
producer = ServerlessProducer(broker_url=os.environ["BROKER"], exchange_name="tchu_events", connection_timeout=10)
print(type(producer.publish(routing_key="point.submitted", body={"value": 1}, delivery_mode=2)).__name__)
producer.close()
""",
        fresh=True,
    )
    assert said == "str\n"
    town.wait_rows(1, "every", data={"value": 456.78})
    town.wait_rows(1, "every", data={"value": 1})


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> registry.Registry:
    """An empty registry."""
    made = registry.Registry()
    monkeypatch.setattr(registry, "_registry", made)
    return made


def app(**settings: Any) -> Celery:
    made = Celery("town", broker="amqp://127.0.0.1:1//", set_as_current=False)
    made.conf.update(settings)
    return made


@pytest.mark.usefixtures("handlers")
class TestWithoutABroker:
    def test_unknown_options_are_refused_with_the_nearest_name(self) -> None:
        with pytest.raises(SubscriptionError, match="'max_retry': did you mean max_retries"):
            subscribe("a.b", celery_options={"max_retry": 3})(print)
        with pytest.raises(PublishError, match="'count_down': did you mean countdown"):
            TchuClient(app()).publish("a.b", {}, count_down=3)
        with pytest.raises(PublishError, match="call has no option 'prio'"):
            TchuClient(app()).call("a.b", {}, prio=3)

    @pytest.mark.parametrize(
        ("options", "delays"),
        [
            (None, [None]),
            ({"max_retries": 5}, [None]),
            ({"autoretry_for": (OSError,)}, [180, 180, 180, None]),
            ({"autoretry_for": (OSError,), "countdown": 60, "max_retries": 1}, [60, None]),
            (
                {"autoretry_for": (OSError,), "retry_backoff": 2, "retry_backoff_max": 5, "retry_jitter": False},
                [2, 4, 5, None],
            ),
        ],
    )
    def test_retries_are_those_that_celery_gives(self, options: Any, delays: list[float | None]) -> None:
        made = app()
        made.message_broker("town")
        subscribe("a.b", handler_id="one", celery_options=options)(lambda data: None)
        retry_rule = made.subscriptions["town.one"].retry_rule
        assert [retry_rule.delay(attempts, OSError()) for attempts in range(1, len(delays) + 1)] == delays
        assert retry_rule.delay(1, KeyError()) is None

    def test_other_task_options_go_to_celery(self) -> None:
        made = app()
        made.message_broker("town")
        options = {"rate_limit": "10/m", "time_limit": 30, "soft_time_limit": 20, "reject_on_worker_lost": True}
        subscribe("a.b", handler_id="one", celery_options=options)(lambda data: None)
        task = made.tasks["town.one"]
        assert {name: getattr(task, name) for name in options} == options

    def test_an_app_keeps_its_identity_and_what_it_has_chosen(self) -> None:
        made = PlainCelery("town", broker="amqp://127.0.0.1:1//", set_as_current=False, include=["one"])
        made.conf.worker_prefetch_multiplier = 7
        setup_celery_queue(made, "town.queue", ["two"])
        assert isinstance(made, Celery)
        assert (made.main, made.service) == ("town", "town-queue")
        assert list(made.conf.include) == ["one", "two"]
        assert (made.conf.worker_prefetch_multiplier, made.conf.task_acks_late) == (7, True)
        with pytest.raises(InvalidInput, match="already"):
            setup_celery_queue(made, "other", [])

    def test_what_the_set_up_cannot_do_is_refused(self) -> None:
        for wrong in ({"exchange_name": "mine"}, {"durable": False}, {"exchange_type": "direct"}):
            with pytest.raises(InvalidInput):
                app().message_broker("town", **wrong)
        made = app()
        create_topic_dispatcher(made)
        made.conf.task_queues = (Queue("mine"),)
        with pytest.raises(InvalidInput, match="set up the app last"):
            made.declare()
        made = app()
        made.message_broker("town")
        made.conf.broker_url = "amqp://elsewhere//"
        with pytest.raises(InvalidInput, match="set it before"):
            made.declare()

    def test_a_redis_result_backend_keeps_the_records_for_its_window(self) -> None:
        made = app(result_backend="redis://127.0.0.1:1/0", result_expires=3600)
        made.message_broker("town")
        assert (made._store_url, made._dedup_store, made._window) == ("redis://127.0.0.1:1/0", "redis", 3600)

    def test_one_function_may_handle_several_topics_and_the_first_answers(self) -> None:
        made = app()
        made.message_broker("town")

        @subscribe("a.*")
        @subscribe("a.b")
        def both(data: Any) -> None:
            pass

        subscribe("a.b", handler_id="second")(lambda data: None)
        assert sorted(one.pattern or "" for one in made.subscriptions.values()) == ["a.*", "a.b", "a.b"]
        assert made.answered["a.b"].name.startswith("call-tests-compat")
        with pytest.raises(SubscriptionError, match="already"):
            subscribe("a.b", handler_id="second")(lambda data: None)

    def test_data_takes_their_form_and_nothing_is_rounded(self) -> None:
        id = UUID("12345678123456781234567812345678")
        data = {
            "id": id,
            "at": datetime(2026, 1, 2, tzinfo=UTC),
            "on": date(2026, 1, 2),
            "price": Decimal("0.10"),
            "tags": {"a"},
            "raw": b"abc",
            "bin": b"\xff",
        }
        assert plain(data) == {
            "id": str(id),
            "at": "2026-01-02T00:00:00+00:00",
            "on": "2026-01-02",
            "price": 0.1,
            "tags": ["a"],
            "raw": "abc",
            "bin": "/w==",
        }
        assert plain('{"a": 1}') == {"a": 1}
        for wrong in (Decimal("0.1000000000000000055511151231"), object(), "{"):
            with pytest.raises(SerializationError):
                plain({"a": wrong} if wrong != "{" else wrong)

    def test_events_are_read_and_checked(self) -> None:
        class Model(BaseModel):
            number: int

        event = TchuEvent("a.b", request_serializer_class=Model)
        with pytest.raises(ValueError, match="serialize_request"):
            event.get("number")
        with pytest.raises(SerializationError, match="request"):
            event.serialize_request({"number": "x"})
        assert event.serialize_request({"number": "4"}) == {"number": 4}
        assert (event.get("number"), event["number"], event.get("more", 1), "more" in event) == (4, 4, 1, False)
        assert event.is_authorized() is False
        with pytest.raises(ValueError, match="Topic"):
            TchuEvent()
        with pytest.raises(ValueError, match="No handler"):
            event.subscribe()
        with pytest.raises(SerializationError, match="is not a serializer"):
            TchuEvent("a.b", request_serializer_class=int).serialize_request({})

    def test_a_context_helper_is_called_with_the_data_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(TchuEvent, "_context_helper", None)
        TchuEvent.set_context_helper(lambda data: {"user": data["user"]})
        event = TchuEvent("a.b")
        event.serialize_request({"user": 1})
        assert event.request_context == {"user": 1}
        own = TchuEvent("a.b", context_helper=lambda data: {"own": 1})
        own.serialize_request({"user": 1})
        assert own.request_context == {"own": 1}

    def test_a_sender_is_checked_by_the_serializer_and_leaving_it_out_skips_nothing(
        self, handlers: registry.Registry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(TchuEvent, "_context_helper", None)
        asked: list[tuple[Any, bool]] = []

        class Checks:
            def __init__(
                self, data: Any, context: Any = None, skip_authorization: bool = False, skip_reason: str | None = None
            ) -> None:
                asked.append((context, skip_authorization))
                self.validated_data, self.errors = data, "who are you?"

            def is_valid(self) -> bool:
                context, skipped = asked[-1]
                return skipped or context == {"request": "ann"}

        class Told(TchuEvent):
            class Meta:
                topic = "secret.told"
                request_serializer_class = Checks

        class Open(Told):
            class Meta(Told.Meta):
                topic = "secret.open"
                skip_authorization = True

        got: list[Any] = []
        for kind in (Told, Open):
            kind(handler=got.append, context_helper=lambda data: {"request": data["user"]}).subscribe()
        told, skipping = (one.function for one in handlers.entries)
        told({"user": "ann"})
        for data in ({"user": "eve"}, {"user": None}, {}):
            with pytest.raises(SerializationError, match="who are you"):
                told(data)
        assert [event["user"] for event in got] == ["ann"]
        skipping({"user": "eve"})
        assert [skipped for _, skipped in asked] == [False, False, False, False, True]

    def test_options_of_publish_reach_the_broker(self, redis_server: RedisServer) -> None:
        url = f"{redis_server.url}/4"
        with ServerlessProducer(url) as producer, restante.connect(url) as post:
            id = producer.publish("a.b", {}, countdown=600, priority=7, expires=60)
            found = restante.Admin(post).show("events.unrouted", id)
        assert (found.state, found.priority) == (restante.State.SCHEDULED, 7)
        assert found.due_at is not None
        assert found.expires_at is not None
        assert (found.expires_at - found.due_at).total_seconds() == 60

    def test_a_refusal_of_an_events_handler_is_no_failure(self, caplog: pytest.LogCaptureFixture) -> None:
        made = app()
        made.message_broker("town")

        @subscribe("a.b", handler_id="one")
        def refuse(data: Any) -> None:
            raise TchuRPCException("no", code="NO")

        assert made.subscriptions["town.one"].function({}) is None
        assert "declined handler=one code=NO" in caplog.text

    def test_a_serverless_producer_names_no_other_exchange(self) -> None:
        with pytest.raises(InvalidInput, match="virtual host"):
            ServerlessProducer("amqp://127.0.0.1:1//", exchange_name="mine")

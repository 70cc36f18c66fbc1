"""The OpenTelemetry hook: one trace from send to handler over every door, spans and metrics by the conventions."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker
from opentelemetry import trace
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import restante
import restante.http
from restante import Bus, Client, Draft, LeasedMessage
from restante.bus.addresses import celery_url
from restante.hooks.opentelemetry import OpenTelemetry
from restante.server import ServerSettings, Serving
from restante.testing import PrivateServer, drain
from tests.harness.deadlines import wait_until


class Telemetry:
    """Providers in memory, and the hook on them."""

    def __init__(self) -> None:
        self._exporter, self._reader = InMemorySpanExporter(), InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._exporter))
        self._meters = MeterProvider([self._reader])
        self.tracer = self.tracers.get_tracer("a web process")
        self.hook = OpenTelemetry(tracer_provider=self.tracers, meter_provider=self._meters)

    def spans(self) -> dict[str, ReadableSpan]:
        return {span.name: span for span in self._exporter.get_finished_spans()}

    def points(self, name: str) -> list[Any]:
        data = self._reader.get_metrics_data()
        assert data is not None
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def close(self) -> None:
        self.tracers.shutdown()
        self._meters.shutdown()


@pytest.fixture
def telemetry() -> Iterator[Telemetry]:
    made = Telemetry()
    yield made
    made.close()


def trace_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.trace_id


def is_child(child: ReadableSpan, parent: ReadableSpan) -> bool:
    context = parent.get_span_context()
    return child.parent is not None and context is not None and child.parent.span_id == context.span_id


def test_a_handler_continues_the_trace_of_the_sender(telemetry: Telemetry, restante_client: Client) -> None:
    restante_client.add_hook(telemetry.hook)
    orders, current = restante_client.queue("orders"), []

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        current.append(trace.get_current_span())

    with telemetry.tracer.start_as_current_span("request"):
        id = orders.send({"order": 1}, kind="order.placed")
    drain(orders)
    spans = telemetry.spans()
    request, create, process = spans["request"], spans["create orders"], spans["process orders"]
    assert is_child(create, request)
    assert is_child(process, create)
    assert (create.kind, process.kind) == (SpanKind.PRODUCER, SpanKind.CONSUMER)
    assert current[0].get_span_context() == process.get_span_context()
    assert dict(create.attributes or {}) == {
        "messaging.system": "restante",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "create",
        "messaging.operation.type": "create",
        "messaging.message.id": id,
        "messaging.restante.message.kind": "order.placed",
    }
    assert dict(process.attributes or {}) == {
        "messaging.system": "restante",
        "messaging.destination.name": "orders",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.message.id": id,
        "messaging.restante.message.kind": "order.placed",
        "messaging.message.body.size": 11,
        "messaging.consumer.name": restante_client.consumer,
        "messaging.restante.message.attempts": 1,
    }


def test_every_message_of_a_batch_has_a_context_of_its_own(telemetry: Telemetry, restante_client: Client) -> None:
    orders = restante_client.queue("orders")
    orders.add_hook(telemetry.hook)
    orders.send_many([1, Draft(2, headers={"tenant": "a"}), Draft(3, headers={"traceparent": "its own"})])
    headers = [message.headers for message in orders.receive_many(3)]
    assert headers[1]["tenant"] == "a"
    assert headers[2] == {"traceparent": "its own"}
    assert len({one["traceparent"] for one in headers}) == 3


def test_a_failure_marks_the_span_and_the_metrics(telemetry: Telemetry, restante_client: Client) -> None:
    restante_client.add_hook(telemetry.hook)
    orders = restante_client.queue("orders")

    @orders.handler
    def ship(message: LeasedMessage) -> None:
        if message.payload == "bad":
            raise ValueError("no address")

    orders.send_many(["good", "bad"])
    drain(orders, raises=False)
    process = telemetry.spans()["process orders"]
    assert process.status.status_code is StatusCode.ERROR
    assert (process.attributes or {})["error.type"] == "ValueError"
    assert process.events[0].name == "exception"
    assert sum(point.value for point in telemetry.points("messaging.client.sent.messages")) == 2
    (consumed,) = telemetry.points("messaging.client.consumed.messages")
    assert consumed.value == 2
    durations = telemetry.points("messaging.process.duration")
    ended = [(dict(point.attributes).get("error.type", ""), point.count) for point in durations]
    assert sorted(ended) == [("", 1), ("ValueError", 1)]
    assert durations[0].explicit_bounds[0] < 0.01


def test_coroutine_handlers_in_a_consumer_continue_the_trace(
    telemetry: Telemetry, restante_server: PrivateServer, restante_client: Client
) -> None:
    client = restante.aio.connect(restante_server.url)
    client.add_hook(telemetry.hook)
    orders, current = client.queue("orders"), []

    @orders.handler
    async def ship(message: restante.aio.AsyncLeasedMessage) -> None:
        current.append(trace.get_current_span().get_span_context().trace_id)

    sender = restante_client.queue("orders")
    sender.add_hook(telemetry.hook)
    with telemetry.tracer.start_as_current_span("request"):
        sender.send(1)
    restante.Consumer([orders], stop_when_empty=True).run()
    assert current == [trace_of(telemetry.spans()["request"])]


def test_a_loop_processes_by_hand(telemetry: Telemetry, restante_client: Client) -> None:
    orders = restante_client.queue("orders")
    orders.send("bad")
    for message in orders.consume(stop_when_empty=True):
        with message, telemetry.hook.processing(message):
            raise ValueError("no")
    assert telemetry.spans()["process orders"].status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("header", [7, None, ["00"], "nonsense", {"a": 1}])
def test_a_context_that_cannot_be_read_starts_a_trace(
    telemetry: Telemetry, restante_client: Client, header: object
) -> None:
    restante_client.add_hook(telemetry.hook)
    orders = restante_client.queue("orders")
    orders.handler(lambda message: None)
    orders.send(1, headers={"traceparent": header})
    assert len(drain(orders).handled) == 1
    assert telemetry.spans()["process orders"].parent is None


# -- the other doors -------------------------------------------------------------------------------------------------


def test_http_carries_the_trace_of_the_request_into_the_messages(
    telemetry: Telemetry, restante_server: PrivateServer, restante_client: Client
) -> None:
    orders = restante_client.queue("orders")
    with (
        Serving(restante_server.url, ServerSettings(port=0, sweep=False)) as serving,
        restante.http.connect(serving.address) as web,
        telemetry.tracer.start_as_current_span("request") as span,
    ):
        queue = web.queue("orders")
        queue.send(1)
        queue.send(2, headers={"traceparent": "its own", "tenant": "a"})
        queue.send_many([3])
    one, two, three = [message.headers for message in orders.receive_many(3)]
    trace_id = f"{span.get_span_context().trace_id:032x}"
    assert trace_id in one["traceparent"]
    assert two == {"traceparent": "its own", "tenant": "a"}
    assert trace_id in three["traceparent"]


@pytest.mark.parametrize(
    "headers",
    [
        {"traceparent": "nonsense"},
        {"tracestate": "a=1"},
        {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "a" * 513},
    ],
)
def test_http_drops_a_trace_that_is_none(
    restante_server: PrivateServer, restante_client: Client, headers: dict[str, str]
) -> None:
    import httpx

    with Serving(restante_server.url, ServerSettings(port=0, sweep=False)) as serving:
        sent = httpx.post(f"{serving.address}/api/queues/orders/messages", json={"payload": 1}, headers=headers)
    assert sent.status_code == 201
    message = restante_client.queue("orders").receive()
    assert message is not None
    assert message.headers == {}


def test_a_native_handler_continues_the_trace_of_an_event(
    telemetry: Telemetry, restante_server: PrivateServer, restante_client: Client
) -> None:
    bus = Bus("shop", restante_server.url)
    with telemetry.tracer.start_as_current_span("request"):
        bus.publish("order.paid", {"id": 1})
    bus.close()
    kept = restante_client.queue("events.unrouted")
    kept.add_hook(telemetry.hook)
    kept.handler(lambda message: None)
    drain(kept)
    spans = telemetry.spans()
    assert is_child(spans["process events.unrouted"], spans["request"])


def test_a_handler_of_the_bus_continues_the_trace_of_the_publisher(
    telemetry: Telemetry, restante_server: PrivateServer
) -> None:
    bus, seen = Bus("billing", restante_server.url), []

    @bus.subscribe("order.paid")
    def invoice(data: object) -> None:
        seen.append(trace.get_current_span().get_span_context().trace_id)

    bus.declare()
    with telemetry.tracer.start_as_current_span("request") as span:
        bus.publish("order.paid", {"id": 1})
    drain(bus)
    bus.close()
    assert seen == [span.get_span_context().trace_id]


def test_celerys_own_instrumentation_works_on_restante(
    telemetry: Telemetry, restante_server: PrivateServer, restante_client: Client
) -> None:
    app = Celery("shop", broker=celery_url(restante_server.url), set_as_current=False)
    app.conf.worker_hijack_root_logger = False

    @app.task(name="ship", ignore_result=True)  # type: ignore[untyped-decorator]
    def ship() -> None:
        pass

    CeleryInstrumentor().instrument(tracer_provider=telemetry.tracers)  # type: ignore[no-untyped-call]
    try:
        with telemetry.tracer.start_as_current_span("request"):
            ship.apply_async()
            ship.apply_async(queue="native", countdown=0)
        message = restante_client.queue("native").receive()
        assert message is not None
        assert "traceparent" in message.headers
        message.ack()
        # A worker sets the level of the root logger, by default to ERROR, and leaves it so.
        level = logging.getLevelName(logging.getLogger().level)
        with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=60, loglevel=level) as worker:
            worker.ensure_started()
            wait_until(lambda: "run/ship" in telemetry.spans())
    finally:
        CeleryInstrumentor().uninstrument()  # type: ignore[no-untyped-call]
        app.close()
    spans = telemetry.spans()
    assert trace_of(spans["run/ship"]) == trace_of(spans["request"])


# -- without it ------------------------------------------------------------------------------------------------------


def run_python(program: str) -> str:
    environment = {name: value for name, value in os.environ.items() if name[:9] != "RESTANTE_"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


#: Hides packages as if they were not installed, and says who asks for them.
HIDDEN = """
import sys
asked = []
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("opentelemetry", "sentry_sdk", "structlog"):
            frame, modules = sys._getframe(), set()
            while frame := frame.f_back:
                modules.add(frame.f_globals.get("__name__", "").partition(".")[0])
            asked.append((name, "redis" in modules))
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
"""


def test_nothing_is_imported_by_a_program_that_does_not_use_the_hooks(restante_server: PrivateServer) -> None:
    run_python(
        f"""{HIDDEN}
import restante, restante.hooks, restante.bus
with restante.connect({restante_server.url!r}) as client:
    orders = client.queue("orders")
    orders.handler(lambda message: None)
    orders.send(1)
    restante.Consumer([orders], stop_when_empty=True).run()
restante.Bus("shop", {restante_server.url!r}).publish("order.paid", 1)
assert all(by_redis for name, by_redis in asked), asked  # the driver looks for it by itself
"""
    )


@pytest.mark.parametrize(
    ("module", "package", "extra"),
    [("opentelemetry", "opentelemetry", "opentelemetry"), ("sentry", "sentry_sdk", "sentry")],
)
def test_a_missing_package_is_named_with_its_extra(module: str, package: str, extra: str) -> None:
    said = run_python(
        f"""
import sys, restante
sys.modules[{package!r}] = None
try:
    import restante.hooks.{module}
except restante.MissingExtra as error:
    print(error)
"""
    )
    assert f"needs {package}" in said
    assert f"pip install 'restante[{extra}]'" in said

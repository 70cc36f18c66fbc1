"""The logging hook: the facts of a message on every line of its handler, for structlog and the standard library."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from restante import Client, LeasedMessage
from restante.hooks.logging import ContextFilter, LogContext, log_context
from restante.testing import drain

SHOP = logging.getLogger("tests.shop")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the standard library writes about the shop."""
    text = io.StringIO()
    handler = logging.StreamHandler(text)
    handler.addFilter(ContextFilter())
    form = "%(message)s queue=%(queue)s id=%(message_id)s kind=%(kind)s attempt=%(attempt)s request=%(request_id)s"
    handler.setFormatter(logging.Formatter(form, defaults={"request_id": "-"}))
    SHOP.addHandler(handler)
    SHOP.setLevel(logging.INFO)
    yield text
    SHOP.removeHandler(handler)


def test_lines_of_a_handler_name_its_message_and_others_none(restante_client: Client, lines: io.StringIO) -> None:
    restante_client.add_hook(LogContext())
    orders = restante_client.queue("orders")
    orders.handler(lambda message: SHOP.info("shipped"))
    id = orders.send(1, kind="order.placed")
    drain(orders)
    SHOP.info("idle")
    assert lines.getvalue().splitlines() == [
        f"shipped queue=orders id={id} kind=order.placed attempt=1 request=-",
        "idle queue= id= kind= attempt= request=-",
    ]


def test_structlog_has_the_same_fields(restante_client: Client) -> None:
    restante_client.add_hook(LogContext())
    orders, seen = restante_client.queue("orders"), list[dict[str, Any]]()

    @orders.handler
    async def ship(message: LeasedMessage) -> None:
        seen.append(dict(structlog.contextvars.get_contextvars()))

    id = orders.send(1)
    drain(orders)
    assert seen == [{"queue": "orders", "message_id": id, "kind": "", "attempt": 1}]
    assert structlog.contextvars.get_contextvars() == {}


def test_carried_fields_travel_from_the_sender_to_the_handler_and_on(
    restante_client: Client, lines: io.StringIO
) -> None:
    restante_client.add_hook(LogContext("request_id", "user"))
    orders, mail = restante_client.queue("orders"), restante_client.queue("mail")
    orders.handler(lambda message: mail.send(message.payload))
    mail.handler(lambda message: SHOP.info("mailed"))
    with log_context(request_id=17, other="stays"):
        orders.send(1)
    with structlog.contextvars.bound_contextvars(request_id="r-2"):
        orders.send(2)
    orders.send(3, headers={"request_id": "r-3"})
    orders.send(4)
    drain(orders)
    assert [message.headers for message in mail.receive_many(4)] == [
        {"request_id": "17"},
        {"request_id": "r-2"},
        {"request_id": "r-3"},
        {},
    ]


def test_a_field_of_the_context_is_on_the_line(restante_client: Client, lines: io.StringIO) -> None:
    restante_client.add_hook(LogContext("request_id"))
    orders = restante_client.queue("orders")
    orders.handler(lambda message: SHOP.info("shipped"))
    with log_context(request_id="r-1"):
        orders.send(1)
    drain(orders)
    assert lines.getvalue().endswith("attempt=1 request=r-1\n")

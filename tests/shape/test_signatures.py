"""`inspect.signature` and `help()` show what a user calls, also for methods that are built from operations."""

from __future__ import annotations

import inspect
import pydoc
import typing
from collections.abc import Callable
from typing import Any, Final

import pytest

from restante import Admin, Client, Consumer, LeasedMessage, Message, MessageId, Queue, Sweeper
from restante.aio import AsyncClient, AsyncLeasedMessage, AsyncQueue

CLASSES: Final = (
    Admin,
    AsyncClient,
    AsyncLeasedMessage,
    AsyncQueue,
    Client,
    Consumer,
    LeasedMessage,
    Message,
    Queue,
    Sweeper,
)


#: Every public method of the classes.
METHODS: Final = [
    pytest.param(method, id=f"{kind.__name__}.{name}")
    for kind in CLASSES
    for name, method in inspect.getmembers(kind, inspect.isfunction)
    if not name.startswith("_")
]


@pytest.mark.parametrize("method", METHODS)
def test_a_method_shows_what_a_user_calls(method: Callable[..., Any]) -> None:
    signature = inspect.signature(method)
    names = list(signature.parameters)
    assert names[0] == "self"
    assert "ref" not in names
    assert "Operation" not in str(signature)
    assert " at 0x" not in str(signature)  # a default that says nothing
    assert "return" in method.__annotations__


@pytest.mark.parametrize("method", METHODS)
def test_help_says_what_a_method_does(method: Callable[..., Any]) -> None:
    first = (method.__doc__ or "").partition("\n")[0]
    assert first.endswith("."), first
    text = pydoc.plain(pydoc.render_doc(method))
    assert "in module restante." in text
    assert "operations" not in text.partition("\n")[0]
    assert f"{method.__name__}(self" in text


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_the_signature_of_send_is_that_of_a_call(kind: type[Any]) -> None:
    signature = inspect.signature(kind.send)
    assert list(signature.parameters)[:5] == ["self", "payload", "priority", "delay", "due_at"]
    bound = signature.bind("the queue", {"a": 1}, priority=3)
    assert bound.arguments == {"self": "the queue", "payload": {"a": 1}, "priority": 3}
    assert inspect.iscoroutinefunction(kind.send) is (kind is AsyncQueue)


def test_the_type_hints_of_a_method_can_be_read() -> None:
    hints = typing.get_type_hints(Queue.send)
    assert hints["return"] is MessageId
    assert set(hints) == {*inspect.signature(Queue.send).parameters, "return"} - {"self"}
    assert typing.get_type_hints(Queue.extend_many)["return"] == list[str]


def test_both_runners_show_the_same_signatures() -> None:
    built = [name for name, method in vars(Queue).items() if hasattr(method, "__signature__")]
    assert len(built) > 5
    for name in built:
        assert inspect.signature(getattr(Queue, name)) == inspect.signature(getattr(AsyncQueue, name))

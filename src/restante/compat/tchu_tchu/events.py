"""`TchuEvent`: an event with a topic, serializers and a handler, which gets an instance of it.

On failure a serializer raises `SerializationError`. Authorization is checked on the receiving side: an event without
its sender's user skips no check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, ClassVar

from restante.compat.tchu_tchu.client import TchuClient
from restante.compat.tchu_tchu.registry import get_registry
from restante.compat.tchu_tchu.utils.error_handling import SerializationError
from restante.compat.tchu_tchu.utils.json_encoder import loads_message

ContextHelper = Callable[[dict[str, Any]], Any]
#: The attributes of `Meta`.
_META = (
    "topic",
    "request_serializer_class",
    "response_serializer_class",
    "error_serializer_class",
    "handler",
    "celery_options",
    "skip_authorization",
)
#: The fields of the data that identify the sender.
_SENDER = ("user", "company", "user_company")


class TchuEvent:
    """An event or call of one topic, which subclasses name in `class Meta`.

    A serializer is a class like Django REST framework's (`data=`, `context=`, `is_valid()`, `validated_data`) or a
    pydantic model. `Meta.skip_authorization = True`, an addition to tchu-tchu, tells the serializer on the receiving
    side to skip its checks.
    """

    _context_helper: ClassVar[Any] = None

    @classmethod
    def set_context_helper(cls, helper: ContextHelper) -> None:
        """Sets the function that builds a context from an event's data, for this class and its subclasses."""
        cls._context_helper = staticmethod(helper)

    @classmethod
    def get_context_helper(cls) -> ContextHelper | None:
        """Returns the function set by `set_context_helper`."""
        helper: ContextHelper | None = cls._context_helper
        return helper

    def __init__(
        self,
        topic: str | None = None,
        request_serializer_class: Any = None,
        response_serializer_class: Any = None,
        error_serializer_class: Any = None,
        handler: Callable[[Any], Any] | None = None,
        context_helper: ContextHelper | None = None,
        celery_options: dict[str, Any] | None = None,
    ) -> None:
        meta = getattr(self, "Meta", None)
        # Read statically, so that a function in Meta does not become a bound method.
        declared = {name: inspect.getattr_static(meta, name, None) if meta else None for name in _META}
        self.topic = str(topic or declared["topic"] or "")
        if not self.topic:
            raise ValueError("Topic must be provided either as argument or in Meta class")
        self.request_serializer_class = request_serializer_class or declared["request_serializer_class"]
        self.response_serializer_class = response_serializer_class or declared["response_serializer_class"]
        self.error_serializer_class = error_serializer_class or declared["error_serializer_class"]
        self.handler = handler or declared["handler"]
        self.celery_options = celery_options or declared["celery_options"]
        self.validated_data: Any = None
        self.context: Any = None
        self._skips = bool(declared["skip_authorization"])
        self._own_helper = context_helper
        self._client: TchuClient | None = None

    @property
    def client(self) -> TchuClient:
        """The client that publishes and calls."""
        if self._client is None:
            self._client = TchuClient()
        return self._client

    # -- receiving -----------------------------------------------------------------------------------------------

    def subscribe(self) -> str:
        """Registers the handler, for events and for calls; returns its ID."""
        if not self.handler:
            raise ValueError(f"No handler defined for event topic '{self.topic}'")
        cls, own = type(self), getattr(self.handler, "__name__", "handler")
        id = f"{cls.__module__}.{cls.__name__}.{own}"
        return get_registry().register(self.topic, id, f"{cls.__name__}_{own}", self._received, self.celery_options)

    def _received(self, data: Any) -> Any:
        """Checks the data of a delivery and runs the handler with a new event."""
        assert self.handler is not None
        event = type(self)(
            self.topic,
            self.request_serializer_class,
            self.response_serializer_class,
            self.error_serializer_class,
            context_helper=self._own_helper,
        )
        helper = self._own_helper or self._context_helper
        known = isinstance(data, dict) and any(data.get(name) is not None for name in _SENDER)
        # If the helper raises, the event fails: without a context a serializer may check less.
        context = helper(data) if helper and known else None
        event.serialize_request(data, context, self._skips, "Meta.skip_authorization" if self._skips else None)
        return self.handler(event)

    # -- checking ------------------------------------------------------------------------------------------------

    def serialize_request(
        self, data: Any, context: Any = None, skip_authorization: bool = False, skip_reason: str | None = None
    ) -> Any:
        """Checks the data of a request and keeps it; raises SerializationError if it is not valid."""
        more = {"skip_authorization": True, "skip_reason": skip_reason} if skip_authorization else {}
        self.validated_data = _checked(self.request_serializer_class, data, context, "request", more)
        self.context = context
        return self.validated_data

    def serialize_response(self, data: Any, context: Any = None) -> Any:
        """Checks the data of a reply."""
        return _checked(self.response_serializer_class, data, context, "response")

    def serialize_error(self, data: Any, context: Any = None) -> Any:
        """Checks the data of a `TchuRPCException`."""
        return _checked(self.error_serializer_class, data, context, "error response")

    # -- sending -------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Publishes the data that `serialize_request` checked."""
        self.client.publish(self.topic, self._data)

    def call(self, timeout: float = 30, allow_join: bool = False) -> Any:
        """Calls with the data that `serialize_request` checked; returns the checked reply."""
        answer = self.client.call(self.topic, self._data, timeout=timeout, allow_join=allow_join)
        if isinstance(answer, dict) and answer.get("error_code") is not None:
            return self.serialize_error(answer)
        return self.serialize_response(answer)

    # -- reading -------------------------------------------------------------------------------------------------

    @property
    def _data(self) -> Any:
        if self.validated_data is None:
            raise ValueError("No validated data available. Call serialize_request() first.")
        return self.validated_data

    def get(self, key: str, default: Any = None) -> Any:
        """Returns a value of the checked data."""
        return self._data.get(key, default)

    def __getitem__(self, key: str) -> Any:
        return self._data[key]

    def __contains__(self, key: str) -> bool:
        return self.validated_data is not None and key in self.validated_data

    @property
    def request_context(self) -> Any:
        """The context of the check, or the context helper's for the data; None without either."""
        helper = self._own_helper or self._context_helper
        if self.context is not None or not self.validated_data or helper is None:
            return self.context
        return helper(self.validated_data)

    def is_authorized(self) -> bool:
        """Whether the data names the user and the company of the sender."""
        return all(self._data.get(name) is not None for name in _SENDER)


def _checked(serializer: Any, data: Any, context: Any, what: str, more: dict[str, Any] | None = None) -> Any:
    """The data as its serializer returns it; without a serializer unchanged, but text is parsed as JSON."""
    if serializer is None:
        return loads_message(data) if isinstance(data, str) else data
    if hasattr(serializer, "model_validate"):
        try:
            return serializer.model_validate(data, context=context).model_dump()
        except ValueError as error:
            raise SerializationError(f"Failed to serialize {what}: {error}") from None
    if not hasattr(serializer, "is_valid"):
        raise SerializationError(
            f"{serializer!r} is not a serializer: use Django REST framework's, or a pydantic model"
        )
    checked = serializer(data=data, **({"context": context} if context else {}), **(more or {}))
    if not checked.is_valid():
        raise SerializationError(f"Failed to serialize {what}: {checked.errors}")
    return dict(checked.validated_data)

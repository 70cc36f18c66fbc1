"""The data of events: encodes and decodes pydantic models, type hints and plain JSON.

Data that would change on the way raises `InvalidPayload` before anything is sent.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

from pydantic import BaseModel, PrivateAttr, TypeAdapter, ValidationError
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from restante.bus.envelope import Envelope
from restante.core.errors import InvalidInput, InvalidPayload
from restante.core.keywords import check_keywords
from restante.core.stored import decode_json, encode_json
from restante.core.topics import valid_topic

#: Hints that add nothing to JSON.
_PLAIN = (None, Any, dict, list, str, int, float, bool, object)


class Event(BaseModel):
    """An event as a class: `class Paid(Event, topic="shop.order.paid")` with the data as fields.

    `response` and `error` are the types of a call's answer and of its refusal: models or any type hints. A handler gets
    an instance with its `envelope`.
    """

    topic: ClassVar[str] = ""
    version: ClassVar[str] = ""
    response: ClassVar[Any] = None
    error: ClassVar[Any] = None
    _envelope: Envelope | None = PrivateAttr(default=None)

    def __init_subclass__(
        cls,
        *,
        topic: str | None = None,
        version: str | None = None,
        response: Any = None,
        error: Any = None,
        **config: Any,
    ) -> None:
        # Pydantic has removed its own keywords already.
        check_keywords(config, ("topic", "version", "response", "error"), f"class {cls.__name__}(Event)")
        super().__init_subclass__()
        if topic is not None:
            cls.topic = valid_topic(topic)
        if version is not None:
            cls.version = version
        if response is not None:
            cls.response = response
        if error is not None:
            cls.error = error

    def received_in(self, envelope: Envelope) -> None:
        """Sets the envelope this event was received in."""
        self._envelope = envelope

    @property
    def envelope(self) -> Envelope:
        """The id, time, source, version and attempts of a received event."""
        if self._envelope is None:
            raise InvalidInput("this event was created here and not received: it has no envelope")
        return self._envelope


@functools.lru_cache(maxsize=1000)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(hint)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidInput(
            f"{hint!r} is not a schema: use a pydantic model, a dataclass or a hint of JSON values ({error.message})"
        ) from None


def encode(value: Any, hint: Any = None) -> bytes:
    """The JSON text of a value, by its model, its dataclass or the hint; otherwise of plain JSON values alone."""
    if isinstance(value, BaseModel) or (hasattr(value, "__dataclass_fields__") and not isinstance(value, type)):
        hint = type(value)
    elif hint in _PLAIN:
        return encode_json(value, "data")[0]
    adapter = _adapter(hint)
    try:
        text = adapter.dump_json(adapter.validate_python(value))
        # pydantic writes values that JSON does not have, such as NaN and infinity, as null.
        if b"null" in text and adapter.validate_json(text) != adapter.validate_python(value):
            raise InvalidPayload(f"data of {_name(hint)} would change on the way: JSON has no NaN, no infinity")
    except ValidationError as error:
        raise InvalidPayload(f"data is not {_name(hint)}: {_first(error)}") from None
    except (ValueError, TypeError) as error:
        if isinstance(error, InvalidPayload):
            raise
        raise InvalidPayload(f"data of {_name(hint)} cannot be sent as JSON: {error}") from None
    return text


def decode(text: bytes | str, hint: Any = None) -> Any:
    """The value of JSON text by a hint; InvalidPayload names the part that does not fit."""
    if hint in (None, Any, object):
        return decode_json(text.encode() if isinstance(text, str) else text)
    try:
        return _adapter(hint).validate_json(text)
    except ValidationError as error:
        raise InvalidPayload(f"data is not {_name(hint)}: {_first(error)}") from None


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """A function's annotations as types; empty if one cannot be resolved."""
    target = function if hasattr(function, "__annotations__") else type(function).__call__
    try:
        return get_type_hints(target)
    except (NameError, TypeError, AttributeError):
        return {}


def _name(hint: Any) -> str:
    return getattr(hint, "__name__", None) or str(hint)


def _first(error: ValidationError) -> str:
    errors = error.errors(include_url=False, include_input=False)
    where = ".".join(str(part) for part in errors[0]["loc"]) or "the whole"
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {errors[0]['msg']}{more}"

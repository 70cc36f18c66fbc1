"""The arguments of a task, bound to its parameters and checked: JSON values in a payload, Python values in a call.

JSON annotations are checked here, exactly and without conversion. Any other annotation is left to pydantic, in its
strict mode. Arguments that do not fit raise InvalidArguments, before a send stores anything or a handler runs.
"""

from __future__ import annotations

import functools
import inspect
import operator
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from restante.core.errors import InvalidArguments, InvalidInput, InvalidPayload, MissingExtra
from restante.core.extras import needs_extra
from restante.core.keywords import nearest
from restante.core.stored import encode_json

#: Turns a value into another one, or raises `Unfit`.
Conversion = Callable[[Any], Any]

_SCALARS: Final = {str: (str,), int: (int,), float: (float, int), bool: (bool,), types.NoneType: (types.NoneType,)}
_NO_NAME: Final[dict[Any, str]] = {
    inspect.Parameter.VAR_POSITIONAL: "*{name} has no name in a payload: take a list, {name}: list[…]",
    inspect.Parameter.VAR_KEYWORD: "**{name} would take misspelt arguments too: take a dict, {name}: dict[str, …]",
}


class Unfit(Exception):
    """A value or a call that the parameters do not allow; the text says what is wrong with it."""


class Unreadable(Exception):
    """An annotation with a name that is not defined yet, or only for type checkers."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One parameter of a task, with the checks of its annotation."""

    name: str
    #: Its annotation as the function spells it, for messages.
    shown: str
    default: Any
    positional_only: bool
    #: A value of Python into the JSON value of the payload, and back.
    to_json: Conversion
    to_python: Conversion

    @property
    def required(self) -> bool:
        return self.default is inspect.Parameter.empty


class TaskArguments:
    """The arguments of one task, in the order of its parameters."""

    def __init__(self, task: str, function: Callable[..., Any], parameters: list[inspect.Parameter]) -> None:
        self.task = task
        self._arguments = {one.name: _argument(task, function, one) for one in parameters}
        self._positional = [one.name for one in parameters if one.kind is not one.KEYWORD_ONLY]
        self._only_positional = [one.name for one in parameters if one.kind is one.POSITIONAL_ONLY]
        self._required = [one.name for one in self._arguments.values() if one.required]

    @property
    def form(self) -> str:
        """The object that a payload must be, for messages; `?` marks arguments with a default."""
        parts = (f'"{one.name}{"" if one.required else "?"}": {one.shown}' for one in self._arguments.values())
        return "{" + ", ".join(parts) + "}"

    def to_json(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The payload for the arguments of a call. Defaults are not stored: those of the handler's code apply."""
        try:
            return self._converted(self._bound(args, kwargs), _TO_JSON)
        except Unfit as unfit:
            raise InvalidArguments(f"{self.task}() {_sentence(unfit)} Its arguments: {self.form}") from None

    def to_python(self, payload: Any) -> tuple[list[Any], dict[str, Any]]:
        """The positional and the named arguments of the call that a payload stands for."""
        try:
            if type(payload) is not dict:
                raise Unfit(f"is {_json_word(payload)}, not an object of arguments")
            given = self._converted(payload, _TO_PYTHON)
        except Unfit as unfit:
            raise InvalidArguments(
                f"the payload does not fit the task {self.task}, which takes {self.form}: it {_sentence(unfit)} Send a "
                "corrected message, or start a consumer whose task takes this one and replay it"
            ) from None
        if not self._only_positional:
            return [], given
        by_position = []
        for name in self._only_positional:
            if name not in given:
                break  # those behind it have defaults too, or Python reports the gap
            by_position.append(given.pop(name))
        return by_position, given

    def default_json(self, name: str) -> Any:
        """The JSON value of an argument's default."""
        argument = self._arguments[name]
        try:
            return argument.to_json(argument.default)
        except (Unfit, InvalidPayload):
            raise InvalidInput(
                f"the default of {name} in {self.task} is not a JSON value of type {argument.shown}, so unique cannot "
                "compare it: give the argument another default or none"
            ) from None

    @property
    def names(self) -> list[str]:
        return list(self._arguments)

    @property
    def required(self) -> list[str]:
        return list(self._required)

    def _bound(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name."""
        if len(args) > len(self._positional):
            raise Unfit(f"takes {len(self._positional)} positional arguments, not {len(args)}")
        given = dict(zip(self._positional, args, strict=False))
        for name, value in kwargs.items():
            if name in given:
                raise Unfit(f"got the argument {name} twice: by position and by name")
            if name in self._only_positional:
                raise Unfit(f"takes {name} by position: it stands before the / of the signature")
            given[name] = value
        return given

    def _converted(self, given: dict[str, Any], conversion: Callable[[Argument], Conversion]) -> dict[str, Any]:
        """The arguments, each through its conversion. Unknown, missing and unfit ones are refused."""
        arguments = self._arguments
        converted = {}
        for name, value in given.items():
            argument = arguments.get(name)
            if argument is None:
                raise Unfit(f"has no argument {name!r}: {nearest(name, arguments)}")
            try:
                converted[name] = conversion(argument)(value)
            except Unfit as unfit:
                raise Unfit(f"takes {name} as {argument.shown}: {unfit}") from None
        for name in self._required:
            if name not in converted:
                raise Unfit(f"needs the argument {name}")
        return converted


_TO_JSON: Final = operator.attrgetter("to_json")
_TO_PYTHON: Final = operator.attrgetter("to_python")


def _sentence(unfit: Unfit) -> str:
    text = str(unfit)
    return text if text.endswith(("?", ".")) else f"{text}."


def _argument(task: str, function: Callable[..., Any], parameter: inspect.Parameter) -> Argument:
    if (remedy := _NO_NAME.get(parameter.kind)) is not None:
        raise InvalidInput(f"the task {task} cannot be sent: {remedy.format(name=parameter.name)}")
    annotation = resolved(function, parameter.annotation)
    shown = spelt(parameter.annotation)
    if (check := _plain_check(annotation)) is not None:
        to_json = to_python = check
    else:
        to_json, to_python = _pydantic_conversions(annotation, f"the argument {parameter.name}: {shown} of {task}")
    return Argument(
        parameter.name, shown, parameter.default, parameter.kind is parameter.POSITIONAL_ONLY, to_json, to_python
    )


def resolved(function: Callable[..., Any], annotation: Any) -> Any:
    """An annotation as a type. Raises Unreadable if it names what is not defined."""
    if annotation is inspect.Parameter.empty:
        return Any
    while isinstance(function, functools.partial):
        function = function.func
    function = inspect.unwrap(function)
    if not hasattr(function, "__globals__"):
        function = type(function).__call__  # of a callable object
    scope = getattr(function, "__globals__", {})
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    try:
        return typing.get_type_hints(holder, globalns=scope, include_extras=True)["it"]
    except NameError as error:
        raise Unreadable(str(error)) from None


def spelt(annotation: Any) -> str:
    """An annotation as a person would write it."""
    if annotation is inspect.Parameter.empty:
        return "any JSON value"
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        return "None" if annotation is types.NoneType else annotation.__name__
    return str(annotation).replace("typing.", "")


# -- JSON annotations ------------------------------------------------------------------------------------------------


def _plain_check(annotation: Any) -> Conversion | None:
    """A check for an annotation that says no more than JSON does; None for every other annotation."""
    if annotation is Any or annotation is object:
        return _anything
    if isinstance(annotation, type) and annotation in _PLAIN_TYPES:
        return functools.partial(_check_scalar, _PLAIN_TYPES[annotation])
    if isinstance(annotation, typing.NewType):
        return _plain_check(annotation.__supertype__)
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        return _plain_check(inner[0]) if all(isinstance(note, str) for note in inner[1:]) else None
    if origin is typing.Literal:
        plain = all(type(value) in _SCALARS for value in inner)
        return functools.partial(_check_literal, {(type(value), value) for value in inner}) if plain else None
    if origin in (typing.Union, types.UnionType):
        checks = [check for one in inner if (check := _plain_check(one)) is not None]
        return functools.partial(_check_union, checks) if len(checks) == len(inner) else None
    if origin is list:
        check = _plain_check(inner[0])
        return None if check is None else functools.partial(_check_list, check)
    if origin is dict and inner[0] is str:
        check = _plain_check(inner[1])
        return None if check is None else functools.partial(_check_dict, check)
    return None


_PLAIN_TYPES: Final[dict[Any, tuple[type, ...]]] = {**_SCALARS, list: (list,), dict: (dict,)}


_AT_ITEM: Final = "at item "


def _anything(value: Any) -> Any:
    return value  # the encoder of the payload refuses what is not JSON


def _check_scalar(allowed: tuple[type, ...], value: Any) -> Any:
    if type(value) not in allowed:
        raise Unfit(f"this is {_article(value)}")
    return value


def _check_literal(allowed: set[tuple[type, Any]], value: Any) -> Any:
    if type(value) not in _SCALARS or (type(value), value) not in allowed:
        raise Unfit("this is another value")
    return value


def _check_union(checks: list[Conversion], value: Any) -> Any:
    reason = f"this is {_article(value)}"
    for check in checks:
        try:
            return check(value)
        except Unfit as unfit:
            # A list with one wrong item is best described by that item.
            reason = str(unfit) if str(unfit).startswith(_AT_ITEM) else reason
    raise Unfit(reason)


def _check_list(check: Conversion, value: Any) -> Any:
    _check_scalar((list,), value)
    for place, item in enumerate(value):
        try:
            check(item)
        except Unfit as unfit:
            raise Unfit(f"{_AT_ITEM}{place}: {unfit}") from None
    return value


def _check_dict(check: Conversion, value: Any) -> Any:
    _check_scalar((dict,), value)
    for key, item in value.items():
        try:
            _check_scalar((str,), key)
            check(item)
        except Unfit as unfit:
            raise Unfit(f"{_AT_ITEM}{key!r}: {unfit}") from None
    return value


def _article(value: Any) -> str:
    name = type(value).__name__
    return "None" if value is None else f"an {name}" if name[:1] in "AEIOaeio" else f"a {name}"


def _json_word(payload: Any) -> str:
    words = {bytes: "bytes", list: "an array", str: "a string", bool: "a boolean", types.NoneType: "null"}
    return words.get(type(payload), "a number")


# -- every other annotation, by pydantic -----------------------------------------------------------------------------


def _pydantic_conversions(annotation: Any, what: str) -> tuple[Conversion, Conversion]:
    """Conversions into JSON and back by pydantic, both strict: the same values fit at the send and in the handler."""
    with needs_extra("tasks", what):
        from pydantic import ConfigDict, TypeAdapter, ValidationError
        from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
        from pydantic_core import PydanticSerializationError
    # A model brings its own configuration, and pydantic refuses another one beside it.
    own = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants")
    adapter: TypeAdapter[Any]
    try:
        try:
            adapter = TypeAdapter(annotation, config=own)
        except PydanticUserError as error:
            if error.code != "type-adapter-config-unused":
                raise
            adapter = TypeAdapter(annotation)
    except PydanticUndefinedAnnotation as error:
        raise Unreadable(str(error)) from None
    except PydanticUserError as error:
        unknown = error.code == "schema-for-unknown-type"
        reason = "pydantic does not know this type" if unknown else str(error).splitlines()[0].rstrip(".")
        raise InvalidInput(f"{what} cannot be checked: {reason}; take an id or a pydantic model instead") from None

    def to_python(value: Any) -> Any:
        try:
            return adapter.validate_json(encode_json(value, "the argument")[0], strict=True)
        except ValidationError as error:
            raise Unfit(_reasons(error)) from None

    def to_json(value: Any) -> Any:
        try:
            checked = adapter.validate_python(value, strict=True)
            plain = adapter.dump_python(checked, mode="json", by_alias=True, warnings="error")
        except ValidationError as error:
            raise Unfit(_reasons(error)) from None
        except (PydanticSerializationError, UnicodeDecodeError) as error:
            raise Unfit(f"this cannot be written as JSON: {error}") from None
        try:
            to_python(plain)
        except Unfit as unfit:
            raise Unfit(f"its JSON cannot be read again: {unfit}") from None
        return plain

    return to_json, to_python


def _reasons(error: Any) -> str:
    """What a ValidationError complains about, without the values."""
    found = []
    for one in error.errors(include_url=False, include_context=False, include_input=False):
        place = ".".join(str(part) for part in one["loc"])
        found.append(f"{place}: {one['msg']}" if place else one["msg"])
    return f"{'; '.join(found[:3])}{'; …' if len(found) > 3 else ''}"


def result_conversion(function: Callable[..., Any]) -> Conversion | None:
    """How the value that a task returns becomes JSON, if its annotation is a model or the like; None: as it is."""
    annotation = getattr(inspect.unwrap(function), "__annotations__", {}).get("return", Any)
    try:
        annotation = resolved(function, annotation)
        if _plain_check(annotation) is not None:
            return None
        to_json, _ = _pydantic_conversions(annotation, "the result")
    except (Unreadable, InvalidInput, MissingExtra):
        return None

    def converted(value: Any) -> Any:
        try:
            return to_json(value)
        except (Unfit, InvalidInput):
            return value  # the work is done; whoever keeps the result says what is wrong with it

    return converted

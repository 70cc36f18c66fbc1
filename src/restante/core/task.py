"""Tasks: typed functions whose calls are messages; a task sends them and is their handler.

On failure: a send with arguments that do not fit raises InvalidArguments and stores nothing. A payload that does not
fit raises it in the handler: the message is retried, because a newer consumer may have the code for it, and then dead.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import hashlib
import inspect
import json
import typing
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    ParamSpec,
    Protocol,
    Self,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from restante.core import operations as ops
from restante.core.errors import InvalidInput
from restante.core.handlers import Registered, claim, is_coroutine_function
from restante.core.keywords import check_keywords, nearest, parameters
from restante.core.leased_message import AsyncLeasedMessage, LeasedMessage
from restante.core.message import Draft, Message
from restante.core.names import valid_name
from restante.core.queue_ref import QueueRef
from restante.core.retry import seconds
from restante.core.schedule import Schedule, check_name, timing_from
from restante.core.send_options import EachSendOptions, MessageOptions
from restante.core.stored import MAX_UNIQUE, encode_json
from restante.core.task_arguments import TaskArguments, Unreadable, resolved, result_conversion
from restante.core.ticks import Timing

if TYPE_CHECKING:
    from restante.core.handle import AsyncHandle, Handle
    from restante.core.queue import AsyncQueue, Queue

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


class TaskOptions(MessageOptions, total=False):
    """What `@queue.task(…)` accepts; those of every message, but `timeout`, are given to each that the task sends.

    With `cron` or `every` the task is called without arguments at each tick: a consumer of its queue stores the
    schedule when it starts.
    """

    kind: str | None
    unique: bool | str | Sequence[str]
    soft_timeout: float | timedelta | None
    cron: str | Timing | None
    every: float | str | timedelta | Timing | None
    tz: str | None


class SendingOptions(EachSendOptions, total=False):
    """What `task.using(…)` accepts: the options of `send` but those that the task itself decides."""

    id: str | None
    durability: str | None


#: Options of the task itself; the others go into each message.
_OF_TASK: Final = ("kind", "unique", "timeout", "soft_timeout", "cron", "every", "tz")
#: What a task decides for its messages.
_DECIDED: Final = ("payload", "kind", "content_type")
#: Characters of a kind that stand before the hash of arguments which are too long for a unique key.
_KIND_IN_KEY: Final = 100


class TaskDefinition:
    """What a task and its copies by `using` share: the function, its arguments, and how a payload reaches it."""

    def __init__(self, queue: Queue | AsyncQueue, function: Callable[..., Any], options: TaskOptions) -> None:
        self.queue = queue
        self.function = function
        self.kind = _kind(queue.name, function, options.get("kind"))
        self.asynchronous = is_coroutine_function(function)
        self.parameters, self.takes_message = self._parameters()
        self.unique = self._unique(options.get("unique", False))
        self.timeout, self.soft_timeout = _limits(options)
        try:
            self.arguments  # noqa: B018 (refuses now what cannot be sent)
        except Unreadable:
            pass  # a name that the module defines later; read again at the first use

    @functools.cached_property
    def arguments(self) -> TaskArguments:
        return TaskArguments(self.kind, self.function, self.parameters)

    @functools.cached_property
    def _defaults(self) -> dict[str, Any]:
        """The JSON values of the defaults that a unique key may need."""
        required = self.arguments.required
        return {name: self.arguments.default_json(name) for name in self.unique if name not in required}

    def payload(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The payload for a call with these arguments."""
        return self._readable().to_json(args, kwargs)

    def unique_key(self, payload: dict[str, Any]) -> str:
        """The kind and the arguments that `unique` names, as text; long ones by their hash."""
        values = {name: payload[name] if name in payload else self._defaults[name] for name in self.unique}
        encode_json(values)  # refuses what is not JSON, with the remedy
        text = f"{self.kind}:{json.dumps(values, sort_keys=True, separators=(',', ':'))}"
        if len(text) <= MAX_UNIQUE:
            return text
        return f"{self.kind[:_KIND_IN_KEY]}:{hashlib.sha256(text.encode()).hexdigest()}"

    def handler(self) -> Callable[[Any], Any]:
        """What a consumer calls with each message: the function, with the arguments of the payload."""
        function, takes_message = self.function, self.takes_message
        converted = result_conversion(function)

        def call(message: Message) -> Any:
            by_position, by_name = self._readable().to_python(message.payload)
            return function(message, *by_position, **by_name) if takes_message else function(*by_position, **by_name)

        async def handle_async(message: Message) -> Any:
            result = await call(message)
            return result if converted is None else converted(result)

        def handle(message: Message) -> Any:
            result = call(message)
            return result if converted is None else converted(result)

        chosen: Any = handle_async if self.asynchronous else call if converted is None else handle
        chosen.__name__ = chosen.__qualname__ = self.kind
        # `Handling` reads these: limits of time, that the result is the message's, and whether it needs the message.
        chosen.timeout, chosen.soft_timeout, chosen.returns = self.timeout, self.soft_timeout, True
        chosen.takes_message = takes_message
        return cast(Callable[[Any], Any], chosen)

    def _readable(self) -> TaskArguments:
        try:
            return self.arguments
        except Unreadable as error:
            raise InvalidInput(
                f"the annotations of the task {self.kind} cannot be read: {error}; define or import that name at the "
                "top of the module, not in a function and not under `if TYPE_CHECKING:`"
            ) from None

    def _parameters(self) -> tuple[list[inspect.Parameter], bool]:
        """The parameters that come from the payload, and whether the first one is the message."""
        try:
            every = list(inspect.signature(self.function).parameters.values())
        except ValueError:
            raise InvalidInput(f"the task {self.kind} has no readable signature: wrap it in a def") from None
        if every and every[0].name in ("self", "cls") and every[0].annotation is inspect.Parameter.empty:
            raise InvalidInput(f"the task {self.kind} is a method: define a function, or a staticmethod under the task")
        takes = [self._is_message(one) for one in every]
        if any(takes[1:]):
            raise InvalidInput(f"the task {self.kind} must take the message as its first parameter")
        if not any(takes):
            return every, False
        if every[0].kind not in (every[0].POSITIONAL_ONLY, every[0].POSITIONAL_OR_KEYWORD):
            raise InvalidInput(f"the task {self.kind} must take the message by position, not behind a *")
        return every[1:], True

    def _is_message(self, parameter: inspect.Parameter) -> bool:
        """Whether a parameter is annotated as the received message; raises InvalidInput if it would be another one."""
        try:
            annotation = resolved(self.function, parameter.annotation)
        except Unreadable:
            # Imported for type checkers alone.
            name = str(parameter.annotation).rpartition(".")[2]
            annotation = {one.__name__: one for one in (Message, LeasedMessage, AsyncLeasedMessage)}.get(name)
        known = [one for one in typing.get_args(annotation) or (annotation,) if isinstance(one, type)]
        if not any(issubclass(one, Message) for one in known):
            return False
        awaits = self.asynchronous and _is_async(self.queue)
        given = AsyncLeasedMessage if awaits else LeasedMessage
        if not any(issubclass(given, one) for one in known):
            raise InvalidInput(f"the task {self.kind} gets {given.__name__}: annotate {parameter.name} with that")
        return True

    def _unique(self, unique: bool | str | Sequence[str]) -> tuple[str, ...]:
        """The arguments that a unique key consists of; none without `unique`."""
        known = [one.name for one in self.parameters]
        if isinstance(unique, bool) or unique is None:
            if unique and not known:
                raise InvalidInput(f"the task {self.kind} has no arguments to be unique by: send with using(unique=…)")
            return tuple(known) if unique else ()
        names = (unique,) if isinstance(unique, str) else tuple(unique)
        for name in names:
            if name not in known:
                raise InvalidInput(f"unique of the task {self.kind} names no argument {name!r}: {nearest(name, known)}")
        return names


def _is_async(queue: Queue | AsyncQueue) -> bool:
    return inspect.iscoroutinefunction(queue.send)


def _kind(queue: str, function: Any, kind: str | None) -> str:
    if not callable(function):
        raise InvalidInput(f"a task of {queue} must be a function, not {function!r}; options are given by name")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidInput(f"the task {function.__name__} has a yield, so calling it runs nothing: remove the yield")
    if kind is None:
        kind = getattr(function, "__name__", "")
        if kind in ("", "<lambda>"):
            raise InvalidInput(f"{function!r} has no name for its messages: give one, @{queue}.task(kind=…)")
    return valid_name(kind, "kind")


def _limits(options: TaskOptions) -> tuple[float | None, float | None]:
    """`timeout` and `soft_timeout` in seconds."""
    given = (("timeout", options.get("timeout")), ("soft_timeout", options.get("soft_timeout")))
    hard, soft = (None if value is None else seconds(value, name, least=0.001) for name, value in given)
    if hard is not None and soft is not None and soft >= hard:
        raise InvalidInput(f"soft_timeout must be shorter than timeout, not {soft:g} s of {hard:g} s")
    return hard, soft


@functools.cache
def _sending_options() -> list[str]:
    return [name for name in parameters(ops.send) if name not in _DECIDED]


class AnyTask(Registered, Generic[P, R]):
    """What the tasks of both runners have in common."""

    def __init__(self, definition: TaskDefinition, options: dict[str, Any]) -> None:
        functools.update_wrapper(cast(Callable[..., Any], self), definition.function, updated=())
        self._definition = definition
        self._options = options
        self._unique = bool(definition.unique)

    @property
    def kind(self) -> str:
        """The kind of the task's messages: the name of the function, or the one that was given."""
        return self._definition.kind

    @property
    def queue(self) -> Any:
        """The queue that it sends to."""
        return self._definition.queue

    @property
    def function(self) -> Callable[..., R]:
        """The function itself."""
        return self._definition.function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Calls the function here and now; nothing is sent."""
        return self._definition.function(*args, **kwargs)  # type: ignore[no-any-return]

    def using(self, **options: Unpack[SendingOptions]) -> Self:
        """Returns the same task with other options for what it sends: `ship.using(delay=60).send(order=42)`."""
        for name in options:
            if name in ("kind", "soft_timeout"):
                raise InvalidInput(f"{self.kind}.using() has no option {name!r}: give it to @{self.queue.name}.task")
        check_keywords(options, _sending_options(), f"{self.kind}.using()")
        other = copy.copy(self)
        other._options = {**self._options, **options}
        other._unique = self._unique and "unique" not in options
        return other

    def draft(self, *args: P.args, **kwargs: P.kwargs) -> Draft:
        """Returns the message of a call without sending it, for `queue.send_many`."""
        payload, options = self._message(args, kwargs)
        if "durability" in options:
            raise InvalidInput("a draft has no durability of its own: give it to send_many")
        return Draft(payload, kind=self.kind, **options)

    def _planned(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Payload and options of a call without arguments."""
        payload, options = self._message((), {})
        return payload, options | {"kind": self.kind}

    def _message(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Payload and options of the message for a call."""
        payload = self._definition.payload(args, kwargs)
        if not self._unique:
            return payload, self._options
        return payload, {**self._options, "unique": self._definition.unique_key(payload)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} of {self._definition.queue.name}>"


class Task(AnyTask[P, R]):
    """A function whose calls can be sent as messages. Define it with `@queue.task`; threads may share it."""

    @property
    def queue(self) -> Queue:
        """The queue that it sends to; over HTTP an `HttpQueue`."""
        return cast("Queue", self._definition.queue)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Sends a call of the function, after checking its arguments, and returns the message's handle."""
        payload, options = self._message(args, kwargs)
        queue = self.queue
        return queue.handle(queue.send(payload, kind=self.kind, **options))

    def schedule(self, name: str, cron: str | Timing, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Sends a call of the function at each tick: `ship.schedule("nightly", "0 3 * * *", order=42)`.

        For a time zone or an interval give `restante.cron(…)` or `restante.every(…)`.
        """
        payload, options = self._message(args, kwargs)
        return self.queue.schedule(name, cron, payload=payload, kind=self.kind, **options)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle:
        """Sends a call of the function from a coroutine: in a thread, so that the event loop does not wait."""
        return await asyncio.to_thread(self.send, *args, **kwargs)


class AsyncTask(AnyTask[P, R]):
    """A function whose calls can be sent as messages. Define it with `@queue.task` on an `AsyncQueue`."""

    @property
    def queue(self) -> AsyncQueue:
        """The queue that it sends to; over HTTP an `AsyncHttpQueue`."""
        return cast("AsyncQueue", self._definition.queue)

    async def send(self, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle:
        """Sends a call of the function, after checking its arguments, and returns the message's handle."""
        payload, options = self._message(args, kwargs)
        queue = self.queue
        return queue.handle(await queue.send(payload, kind=self.kind, **options))

    async def schedule(self, name: str, cron: str | Timing, /, *args: P.args, **kwargs: P.kwargs) -> Schedule:
        """Sends a call of the function at each tick: `await ship.schedule("nightly", "0 3 * * *", order=42)`.

        For a time zone or an interval give `restante.cron(…)` or `restante.every(…)`.
        """
        payload, options = self._message(args, kwargs)
        return await self.queue.schedule(name, cron, payload=payload, kind=self.kind, **options)

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> AsyncHandle:
        """The same as `send`, so that code with tasks of both kinds of queues reads alike."""
        return await self.send(*args, **kwargs)


class MessageTask(Task[P, R]):
    """A task that takes the message first: a call of it names the message, a send does not."""

    def __call__(  # type: ignore[override]  # the parameters of a call are not those of a send
        self, message: LeasedMessage, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Calls the function here and now; nothing is sent."""
        return self._definition.function(message, *args, **kwargs)  # type: ignore[no-any-return]


class AsyncMessageTask(AsyncTask[P, R]):
    """An `AsyncTask` that takes the message first."""

    def __call__(  # type: ignore[override]  # as above
        self, message: Any, /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Calls the function here and now; nothing is sent."""
        return self._definition.function(message, *args, **kwargs)  # type: ignore[no-any-return]


def define(queue: Queue | AsyncQueue, function: Any, options: TaskOptions) -> Any:
    """Makes a function a task and registers its handler; without a function returns the decorator that does."""
    check_keywords(options, tuple(TaskOptions.__annotations__), f"@{queue.name}.task")

    def add(function: Callable[..., Any]) -> Any:
        if isinstance(function, AnyTask):
            raise InvalidInput(f"{function!r} is a task already: define another one over its .function")
        if function in queue.handlers.values():
            raise InvalidInput(
                f"{function.__name__} is a handler of {queue.name} already: remove @{queue.name}.handler"
            )
        definition = TaskDefinition(queue, function, options)
        sent: dict[str, Any] = {name: value for name, value in options.items() if name not in _OF_TASK}
        unique = "x" if definition.unique else None
        # The operation is built and not run: it refuses what a send would refuse.
        ops.send(QueueRef(queue.name, "", Draft), {}, kind=definition.kind, unique=unique, **sent)
        claim(queue.handlers, queue.name, definition.kind, definition.handler())
        if _is_async(queue):
            task: Any = (AsyncMessageTask if definition.takes_message else AsyncTask)(definition, sent)
        else:
            task = (MessageTask if definition.takes_message else Task)(definition, sent)
        _plan(task, options)
        return task

    return add if function is None else add(function)


def _plan(task: AnyTask[Any, Any], options: TaskOptions) -> None:
    """Notes the schedule of a task with `cron` or `every`, for the consumers of its queue."""
    at, interval, tz = options.get("cron"), options.get("every"), options.get("tz")
    if at is None and interval is None:
        if tz is not None:
            raise InvalidInput(f"the task {task.kind} has a time zone and no cron expression: give cron='0 3 * * *'")
        return
    if isinstance(interval, Timing):
        if at is not None:
            raise InvalidInput(f"the task {task.kind} has cron and every: give one of them")
        at, interval = interval, None
    timing = timing_from(at, interval, {"tz": tz})
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    every = task._definition.parameters
    if needed := [one.name for one in every if one.default is one.empty and one.kind not in variable]:
        raise InvalidInput(
            f"the task {task.kind} is called without arguments at each tick and needs {needed[0]}: give it a default, "
            f'or use {task.kind}.schedule("name", "0 3 * * *", {needed[0]}=…)'
        )
    task._definition.queue.ref.task_schedules[check_name(task.kind)] = lambda: (timing, *task._planned())


class TaskDecorator(Protocol):
    """What `@queue.task(…)` returns: it makes a function a task."""

    @overload
    def __call__(self, function: Callable[Concatenate[LeasedMessage, P], R], /) -> MessageTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


class AsyncTaskDecorator(Protocol):
    """What `@queue.task(…)` of an `AsyncQueue` returns."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[AsyncLeasedMessage, P], Awaitable[R]], /
    ) -> AsyncMessageTask[P, Awaitable[R]]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[LeasedMessage, P], R], /) -> AsyncMessageTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...


class TaskMethod:
    """The method `task` of a `Queue`."""

    @overload
    def task(self, function: Callable[Concatenate[LeasedMessage, P], R], /) -> MessageTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Makes a function a task: `send` stores a call of it as a message, and a consumer of the queue runs it."""
        return define(cast("Queue", self), function, options)


class AsyncTaskMethod:
    """The method `task` of an `AsyncQueue`."""

    @overload
    def task(
        self, function: Callable[Concatenate[AsyncLeasedMessage, P], Awaitable[R]], /
    ) -> AsyncMessageTask[P, Awaitable[R]]: ...

    @overload
    def task(self, function: Callable[Concatenate[LeasedMessage, P], R], /) -> AsyncMessageTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> AsyncTaskDecorator: ...

    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Makes a function a task: `send` stores a call of it as a message, and a consumer of the queue runs it.

        A coroutine function that takes the message gets an `AsyncLeasedMessage`, a plain function a `LeasedMessage`.
        """
        return define(cast("AsyncQueue", self), function, options)

"""Hooks: code that runs around every handler, and the chain that a consumer compiles from them when it starts.

On failure: what `around` raises fails the attempt, as if the handler had raised it. An error in a method that only
listens (`started`, `finished`, `failed`, `dead`) is logged and changes nothing.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, Protocol, Self

from restante.core.errors import InvalidInput
from restante.core.keywords import nearest
from restante.core.message import Draft, Message, State

log = logging.getLogger("restante")


class Hook:
    """Code around every handler. Subclass it, override the methods you need, and register it with `add_hook`.

    `client.add_hook` covers all queues of the client, `queue.add_hook` one queue, `Consumer(…, hooks=[…])` one
    consumer. They are called in that order: the first hook of the client is the outermost. A consumer or loop has the
    hooks that were added before it was made. A loop has no handler: there `around` runs by `queue.run_handler(message)`
    alone, and the log says once that it did not.
    """

    #: What the log has said that it lacks: `around` or `around_async`.
    _warned_of = ""

    def around(self, message: Message, call: Callable[[], Any]) -> Any:
        """Runs a plain handler, in its thread. `call()` runs the inner hooks and the handler, and returns its result.

        The message is acked after this returns. What it raises fails the attempt. If it does not call `call()`, the
        handler does not run, and the message is acked all the same.
        """
        return call()

    async def around_async(self, message: Message, call: Callable[[], Awaitable[Any]]) -> Any:
        """Runs a coroutine handler, on the event loop: `around` for coroutines. Override both to cover all handlers."""
        return await call()

    def started(self, message: Message) -> None:
        """An attempt starts. Runs before `around`, in the handler's thread or on its event loop."""

    def finished(self, message: Message, seconds: float) -> None:
        """An attempt succeeded after this time. Runs in the handler's thread or on its event loop."""

    def failed(self, message: Message, error: BaseException, state: State | None) -> None:
        """An attempt failed. `state` is RETRYING or DEAD, or None if the server did not get the failure in time."""

    def dead(self, message: Message, error: BaseException) -> None:
        """A failed attempt made the message dead. Called after `failed`."""

    def sending(self, queue: str, draft: Draft) -> Draft:
        """A message is sent. Returns the draft to send: this one, or `dataclasses.replace` of it with other headers.

        The draft has its id already. What this raises refuses the send.
        """
        return draft


class Hooked:
    """What clients and queues share: the hooks that were added to them."""

    def __init__(self) -> None:
        self._added: list[Hook] = []

    def add_hook(self, hook: Hook) -> None:
        """Adds a hook around the handlers here, inside those added before. Running consumers do not notice it."""
        self._added.append(check_hook(hook))
        self._hooks_changed()

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks that were added, the outermost first; those of a queue follow those of its client."""
        return tuple(self._added)

    def _hooks_changed(self) -> None:
        """Called after a hook was added."""


class Sending(Protocol):
    """The facts of a queue that a send reads: what hooks do to each message."""

    name: str
    sending: tuple[Callable[[str, Draft], Draft], ...]


class QueueHooks(Hooked):
    """The hooks of a queue: those of the client that opened it, then its own."""

    ref: Sending
    #: What listens to the attempts here; None without hooks, which costs a block of `with message:` nothing.
    listeners: Listeners | None = None
    #: Where the client that opened the queue keeps its hooks.
    _client: Hooked | None = None
    #: Whether the log says already what a loop leaves out.
    _warned = False

    @property
    def hooks(self) -> tuple[Hook, ...]:
        """The hooks of the client that opened the queue, then those of the queue."""
        return (*(self._client.hooks if self._client else ()), *self._added)

    @property
    def client(self) -> Any:
        """The client that opened the queue."""
        return self._client

    def opened_by(self, client: Hooked) -> Self:
        """Puts the hooks of this client around those of the queue."""
        self._client = client
        self._hooks_changed()
        return self

    def _hooks_changed(self) -> None:
        hooks = distinct(self.hooks)
        self.ref.sending = overridden(hooks, "sending")
        self.listeners = Listeners(hooks) if hooks else None

    def warn_of_loop(self, message: Message, soft_timeout: float | None = None) -> None:
        """Logs, once per queue, what was left out of a turn that did not call `run_handler`: `around`, soft limits.

        A hook that gives its block to loops (`processing`, as the shipped ones do) notes that on the message.
        """
        if self._warned:
            return
        by_hand = [hook for hook in distinct(self.hooks) if message.inside_hooks and hasattr(hook, "processing")]
        idle = [hook for hook in distinct(self.hooks) if hook not in by_hand and is_around(hook)]
        if idle:
            names = ", ".join(type(hook).__name__ for hook in idle)
            log.warning(
                "hooks not called queue=%s hooks=%s: in a loop, around runs by run_handler", self.ref.name, names
            )
        if soft_timeout is not None:
            log.warning("soft_timeout not in force queue=%s: in a loop, it holds by run_handler", self.ref.name)
        self._warned = bool(idle) or soft_timeout is not None


#: The methods that only listen: an error in them is logged.
LISTENERS = ("started", "finished", "failed", "dead")
#: The methods of a hook, with how many arguments they are called with.
METHODS: Final = {
    "around": 2,
    "around_async": 2,
    "started": 1,
    "finished": 2,
    "failed": 3,
    "dead": 2,
    "sending": 2,
}
#: How much a name must resemble that of a method to count as a slip. Less would refuse helpers such as `start`.
_MISSPELT: Final = 0.9


def check_hook(hook: Any) -> Hook:
    """Returns `hook` if it can be called as one; raises InvalidInput otherwise."""
    if not isinstance(hook, Hook):
        raise InvalidInput(f"a hook is an instance of a subclass of restante.Hook, not {hook!r}")
    for name in ("around", "sending", *LISTENERS):
        if inspect.iscoroutinefunction(getattr(hook, name)):
            remedy = "write it as around_async" if name == "around" else "write def, without async"
            raise InvalidInput(f"{type(hook).__name__}.{name} is a coroutine function, which nobody awaits: {remedy}")
    _check_methods(hook)
    return hook


def _check_methods(hook: Hook) -> None:
    """Refuses a hook that would never be called, or in a way that its methods do not take."""
    kind = type(hook).__name__
    own = [name for name in dir(type(hook)) if not name.startswith("_") and name not in METHODS]
    for name in own:
        near = difflib.get_close_matches(name, METHODS, 1, cutoff=_MISSPELT)
        if near and callable(getattr(type(hook), name)):
            raise InvalidInput(f"{kind}.{name} is never called: did you mean {near[0]}?")
    if not any(overridden((hook,), name) for name in METHODS):
        raise InvalidInput(f"{kind} overrides no method of restante.Hook: {nearest(own[0] if own else '', METHODS)}")
    for name, count in METHODS.items():
        try:
            inspect.signature(getattr(hook, name)).bind(*range(count))
        except TypeError as error:
            _, *taken = inspect.signature(getattr(Hook, name)).parameters
            names = ", ".join(taken)
            raise InvalidInput(f"{kind}.{name} must take ({names}): {error}") from None
        except ValueError:
            pass  # a callable without a readable signature


def distinct(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    """The hooks without repetitions: one that is added to a client and to its queue is called once."""
    return tuple({id(hook): hook for hook in hooks}.values())


def overridden(hooks: Iterable[Hook], name: str) -> tuple[Callable[..., Any], ...]:
    """The methods of this name that differ from the one of `Hook`, which does nothing."""
    methods = (getattr(hook, name) for hook in hooks)
    return tuple(method for method in methods if getattr(method, "__func__", None) is not getattr(Hook, name))


def is_around(hook: Hook) -> bool:
    """Whether a hook has code around handlers."""
    return bool(overridden((hook,), "around") or overridden((hook,), "around_async"))


def chain(hooks: Sequence[Hook], function: Callable[[Any], Any], *, asynchronous: bool) -> Callable[[Any], Any]:
    """The handler inside the `around` of each hook, the first outermost; the handler itself if no hook has one."""
    for hook in hooks:
        _warn_of_one_side(hook, function, asynchronous=asynchronous)
    for around in reversed(overridden(hooks, "around_async" if asynchronous else "around")):
        function = (_inside_async if asynchronous else _inside)(around, function)
    return function


def _warn_of_one_side(hook: Hook, function: Any, *, asynchronous: bool) -> None:
    """Logs once that a hook for plain handlers alone, or for coroutines alone, leaves out this handler."""
    wanted, other = ("around_async", "around") if asynchronous else ("around", "around_async")
    if hook._warned_of == wanted or overridden((hook,), wanted) or not overridden((hook,), other):
        return
    hook._warned_of = wanted
    log.warning(
        "hook not called hook=%s handler=%s: it has %s and no %s, which %s handlers need",
        type(hook).__name__,
        getattr(function, "__qualname__", repr(function)),
        other,
        wanted,
        "coroutine" if asynchronous else "plain",
    )


def _inside(around: Callable[..., Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def run(message: Any) -> Any:
        return around(message, functools.partial(inner, message))

    return run


def _inside_async(around: Callable[..., Any], inner: Callable[[Any], Any]) -> Callable[[Any], Any]:
    async def run(message: Any) -> Any:
        return await around(message, functools.partial(inner, message))

    return run


class Listeners:
    """What listens to the attempts of a consumer or of a loop, as calls that log their own errors."""

    __slots__ = ("dead", "failed", "finished", "started")

    def __init__(self, hooks: Iterable[Hook]) -> None:
        hooks = tuple(hooks)
        self.started, self.finished, self.failed, self.dead = (overridden(hooks, name) for name in LISTENERS)

    @staticmethod
    def tell(listeners: Iterable[Callable[..., Any]], message: Message, *details: Any) -> None:
        """Calls each of these listeners. An error in one is logged, and the next is called."""
        for listener in listeners:
            try:
                listener(message, *details)
            except Exception:
                name = getattr(listener, "__qualname__", repr(listener))
                log.exception("hook failed hook=%s queue=%s id=%s", name, message.queue, message.id)

    def tell_failed(self, message: Message, error: BaseException, state: State | None) -> None:
        """Calls `failed`, and `dead` if the message is dead now."""
        self.tell(self.failed, message, error, state)
        if state is State.DEAD:
            self.tell(self.dead, message, error)

"""One handler: what it listens to, what it is given, and when it is tried again."""

from __future__ import annotations

import asyncio
import inspect
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from restante.bus.envelope import Envelope
from restante.bus.options import RetryOptions
from restante.bus.schema import Event, decode, hints_of
from restante.core.errors import InvalidInput, InvalidPayload
from restante.core.keywords import check_keywords
from restante.core.retry import RetryPolicy, exponential, fixed, seconds


@dataclass(frozen=True, slots=True)
class RetryRule:
    """When a failed handler runs again: the delays, how many deliveries, and after which errors."""

    policy: RetryPolicy
    max_attempts: int
    errors: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()

    def delay(self, attempts: int, error: BaseException) -> float | None:
        """Seconds until the next attempt, None where this was the last."""
        if attempts >= self.max_attempts or isinstance(error, InvalidPayload):
            return None
        if isinstance(error, self.never) or not isinstance(error, self.errors):
            return None
        return self.policy.next(attempts)

    @classmethod
    def of(
        cls, retry: RetryPolicy | None, max_attempts: int | None, options: dict[str, Any], usual: RetryRule
    ) -> RetryRule:
        """From our words or from Celery's, which are taken out of the options."""
        told = {name: options.pop(name) for name in RetryOptions.__optional_keys__ if name in options}
        more = told.pop("retry_kwargs", None) or {}
        check_keywords(more, ("max_retries", "countdown"), "retry_kwargs")
        told.update(more)
        _check(told)
        if retry is None:
            retry = _celery_policy(told) or usual.policy
        elif given := sorted(told.keys() & _DELAYS):
            raise InvalidInput(f"retry= says when to try again, and so does {given[0]}: give one of them")
        if max_attempts is None:
            if "max_retries" in told:
                max_attempts = 65535 if told["max_retries"] is None else told["max_retries"] + 1
            elif retry.delays is not None:
                max_attempts = len(retry.delays) + 1
            else:
                max_attempts = usual.max_attempts
        elif "max_retries" in told and told["max_retries"] != max_attempts - 1:
            raise InvalidInput("max_attempts counts the first attempt and max_retries does not: give one of them")
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= 65535:
            raise InvalidInput(f"max_attempts must be a whole number from 1 to 65535, not {max_attempts!r}")
        return cls(
            retry,
            max_attempts,
            tuple(told.get("autoretry_for", usual.errors)),
            tuple(told.get("dont_autoretry_for", usual.never)),
        )


#: Celery's words that say when to try again.
_DELAYS = frozenset(("retry_backoff", "retry_backoff_max", "retry_jitter", "default_retry_delay", "countdown"))


def _check(told: Mapping[str, Any]) -> None:
    """InvalidInput for values that Celery would stumble over when a handler fails for the first time."""
    for name in ("autoretry_for", "dont_autoretry_for"):
        errors = told.get(name, ())
        if not isinstance(errors, list | tuple | set | frozenset) or not all(
            isinstance(one, type) and issubclass(one, BaseException) for one in errors
        ):
            raise InvalidInput(f"{name} is a tuple of classes of errors, not {errors!r}")
    retries = told.get("max_retries")
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        raise InvalidInput(f"max_retries must be a whole number from 0, or None for no bound, not {retries!r}")
    for name in ("retry_backoff", "retry_backoff_max", "default_retry_delay", "countdown"):
        if told.get(name) is not None and not (name == "retry_backoff" and isinstance(told[name], bool)):
            seconds(told[name], name)


def _celery_policy(told: Mapping[str, Any]) -> RetryPolicy | None:
    """Celery's full jitter spreads from none to all of a delay; ours spreads about it, so it never is early by half."""
    if told.get("retry_backoff"):
        first = 1.0 if told["retry_backoff"] is True else float(told["retry_backoff"])
        jitter = 0.5 if told.get("retry_jitter", True) else 0.0
        return exponential(first, cap=told.get("retry_backoff_max", 600), jitter=jitter)
    delay = told.get("default_retry_delay", told.get("countdown"))
    if delay is None and not {"retry_backoff", "max_retries"} & told.keys():
        return None
    delay = 180 if delay is None else delay
    retries = told.get("max_retries", 3)
    if retries is None or retries > 1000:
        return exponential(delay, factor=1, cap=max(600.0, float(delay)), jitter=0)
    return fixed(*(delay,) * retries)


class Handler:
    """A function of a service, and everything that was said of it."""

    def __init__(
        self,
        service: str,
        name: str,
        function: Callable[..., Any],
        *,
        pattern: str | None = None,
        answers: str | None = None,
        bound: bool = False,
        retry_rule: RetryRule,
        hint: Any = None,
    ) -> None:
        self.service = service
        self.name = name
        self.pattern = pattern
        self.answers = answers
        self.retry_rule = retry_rule
        #: Whether it has early acks: a crash may lose an event that it has begun. Celery's task says so once bound.
        self.early = False
        #: What is called: a class is made once per process.
        self.function = function() if isinstance(function, type) else function
        self._bound = bound
        hints = hints_of(self.function)
        words = [
            word
            for word, one in inspect.signature(self.function).parameters.items()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)
        ][1 if bound else 0 :]
        self._envelope_word = next((word for word in words if hints.get(word) is Envelope), None)
        data_words = [word for word in words if word != self._envelope_word]
        if not data_words and self._envelope_word is None and not _takes_any(self.function):
            raise InvalidInput(f"the handler {name} takes no data: def {name}(data)")
        self.hint = hint if hint is not None else (hints.get(data_words[0]) if data_words else None)
        self._takes_data = bool(data_words) or _takes_any(self.function)
        self.returns = hints.get("return")
        self.error: Any = None
        if isinstance(self.hint, type) and issubclass(self.hint, Event):
            self.returns = self.hint.response or self.returns
            self.error = self.hint.error

    @property
    def subscription(self) -> str:
        """The name of its queue, its task and its line in lists."""
        return f"{self.service}.{self.name}"

    def value(self, envelope: Envelope, text: str | bytes) -> Any:
        """What the handler is given."""
        try:
            value = decode(text, self.hint)
        except InvalidPayload:
            raise
        except (ValueError, RecursionError) as error:
            raise InvalidPayload(f"the body is not JSON: {error}") from None
        if isinstance(value, Event):
            value.received_in(envelope)
        return value

    def run(self, task: Any, envelope: Envelope, value: Any) -> Any:
        """Calls the function."""
        args = [task] if self._bound else []
        if self._takes_data:
            args.append(value)
        more = {self._envelope_word: envelope} if self._envelope_word else {}
        with envelope.following():
            result = self.function(*args, **more)
            return asyncio.run(result) if inspect.iscoroutine(result) else result


def _takes_any(function: Callable[..., Any]) -> bool:
    return any(one.kind is one.VAR_POSITIONAL for one in inspect.signature(function).parameters.values())


def told(error: BaseException) -> tuple[str, str]:
    """An error's class and text with its traceback, for the history of an attempt."""
    text = "".join(traceback.format_exception(error)) if error.__traceback__ else f"{type(error).__name__}: {error}"
    return type(error).__name__, text

"""A handler of events or calls: its function, its arguments, and the rule by which failures are retried."""

from __future__ import annotations

import asyncio
import inspect
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
    """When a failed handler runs again: the delays, the deliveries, and the errors that are retried."""

    policy: RetryPolicy
    max_attempts: int
    errors: tuple[type[BaseException], ...] = (Exception,)
    never: tuple[type[BaseException], ...] = ()

    def delay(self, attempts: int, error: BaseException) -> float | None:
        """Seconds until the next attempt, None if this was the last."""
        if attempts >= self.max_attempts or isinstance(error, InvalidPayload):
            return None
        if isinstance(error, self.never) or not isinstance(error, self.errors):
            return None
        return self.policy.next(attempts)

    @classmethod
    def of(
        cls, retry: RetryPolicy | None, max_attempts: int | None, options: dict[str, Any], default: RetryRule
    ) -> RetryRule:
        """Reads Restante's keywords or Celery's; Celery's are removed from the options."""
        celery = {name: options.pop(name) for name in RetryOptions.__optional_keys__ if name in options}
        more = celery.pop("retry_kwargs", None) or {}
        check_keywords(more, ("max_retries", "countdown"), "retry_kwargs")
        celery.update(more)
        _check(celery)
        if retry is None:
            retry = _celery_policy(celery) or default.policy
        elif given := sorted(celery.keys() & _DELAYS):
            raise InvalidInput(f"retry= and {given[0]} both set the delays: give one of them")
        if max_attempts is None:
            if "max_retries" in celery:
                max_attempts = 65535 if celery["max_retries"] is None else celery["max_retries"] + 1
            elif retry.delays is not None:
                max_attempts = len(retry.delays) + 1
            else:
                max_attempts = default.max_attempts
        elif "max_retries" in celery and celery["max_retries"] != max_attempts - 1:
            raise InvalidInput("max_attempts counts the first attempt and max_retries does not: give one of them")
        if isinstance(max_attempts, bool) or not isinstance(max_attempts, int) or not 1 <= max_attempts <= 65535:
            raise InvalidInput(f"max_attempts must be a whole number from 1 to 65535, not {max_attempts!r}")
        return cls(
            retry,
            max_attempts,
            tuple(celery.get("autoretry_for", default.errors)),
            tuple(celery.get("dont_autoretry_for", default.never)),
        )


#: Celery's options that set the delays.
_DELAYS = frozenset(("retry_backoff", "retry_backoff_max", "retry_jitter", "default_retry_delay", "countdown"))


def _check(celery: Mapping[str, Any]) -> None:
    """InvalidInput for values on which Celery would fail only when a handler fails for the first time."""
    for name in ("autoretry_for", "dont_autoretry_for"):
        errors = celery.get(name, ())
        if not isinstance(errors, list | tuple | set | frozenset) or not all(
            isinstance(error, type) and issubclass(error, BaseException) for error in errors
        ):
            raise InvalidInput(f"{name} is a tuple of classes of errors, not {errors!r}")
    retries = celery.get("max_retries")
    if retries is not None and (isinstance(retries, bool) or not isinstance(retries, int) or retries < 0):
        raise InvalidInput(f"max_retries must be a whole number from 0, or None for no bound, not {retries!r}")
    for name in ("retry_backoff", "retry_backoff_max", "default_retry_delay", "countdown"):
        if celery.get(name) is not None and not (name == "retry_backoff" and isinstance(celery[name], bool)):
            seconds(celery[name], name)


def _celery_policy(celery: Mapping[str, Any]) -> RetryPolicy | None:
    """The retry policy of Celery's options, None where they set none.

    Celery's full jitter spreads a delay from zero to its whole; ours spreads around it, so it is never early by half.
    """
    if celery.get("retry_backoff"):
        first = 1.0 if celery["retry_backoff"] is True else float(celery["retry_backoff"])
        jitter = 0.5 if celery.get("retry_jitter", True) else 0.0
        return exponential(first, cap=celery.get("retry_backoff_max", 600), jitter=jitter)
    delay = celery.get("default_retry_delay", celery.get("countdown"))
    if delay is None and not {"retry_backoff", "max_retries"} & celery.keys():
        return None
    delay = 180 if delay is None else delay
    retries = celery.get("max_retries", 3)
    if retries is None or retries > 1000:
        return exponential(delay, factor=1, cap=max(600.0, float(delay)), jitter=0)
    return fixed(*(delay,) * retries)


class Handler:
    """A function of a service with its options."""

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
        #: Whether it acks early, so that a crash may lose an event that it has begun. Set once Celery binds the task.
        self.early = False
        #: The callable: a class is instantiated once per process.
        self.function = function() if isinstance(function, type) else function
        self._bound = bound
        hints = hints_of(self.function)
        words = [
            word
            for word, parameter in inspect.signature(self.function).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
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
        """Its name in lists, and the name of its queue and its task."""
        return f"{self.service}.{self.name}"

    def value(self, envelope: Envelope, text: str | bytes) -> Any:
        """The argument for the handler, decoded from a message's JSON."""
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
        """Calls the function; a coroutine runs to its end."""
        args = [task] if self._bound else []
        if self._takes_data:
            args.append(value)
        more = {self._envelope_word: envelope} if self._envelope_word else {}
        with envelope.following():
            result = self.function(*args, **more)
            return asyncio.run(result) if inspect.iscoroutine(result) else result


def _takes_any(function: Callable[..., Any]) -> bool:
    parameters = inspect.signature(function).parameters.values()
    return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)

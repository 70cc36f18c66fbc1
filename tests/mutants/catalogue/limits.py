"""Faults planted in core: time limits, hooks and the text of failures."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_LIMITS = ("tests/faults/test_time_limits.py",)
_HOOKS = ("tests/faults/test_hooks.py",)
_TEXTS = ("tests/core/test_tracebacks.py",)

FAULTS: Final = (
    # -- time limits -----------------------------------------------------------------------------------------------
    Fault(
        "core",
        "a handler that swallows the exception at its limit is acked, its work half done",
        "TimeLimits.around",
        """            self._end(watch)
            if watch.over:
                raise watch.exceeded(None)
        return result""",
        """            self._end(watch)
        return result""",
        (*_LIMITS, "-k", "swallows_the_stop"),
    ),
    Fault(
        "core",
        "except Exception in a handler keeps it alive beyond its limit",
        "HandlerStopped",
        "class HandlerStopped(BaseException):",
        "class HandlerStopped(Exception):",
        (*_LIMITS, "-k", "except_exception"),
    ),
    Fault(
        "core",
        "the messages behind a handler that hangs wait for it",
        "Workers.replace",
        "following.take(rest)",
        "following.take(())",
        (*_LIMITS, "-k", "serves_the_others"),
    ),
    Fault(
        "core",
        "a coroutine that does not end keeps its slot",
        "Consumer._hangs",
        "self._loop.give_slot_away()",
        "pass",
        (*_LIMITS, "-k", "gives_its_place_away"),
    ),
    Fault(
        "core",
        "a handler that has ended after it was given up fails its message a second time",
        "TimeLimits._end",
        "            raise Abandoned\n",
        "            pass\n",
        (*_LIMITS, "-k", "serves_the_others or gives_its_place_away"),
    ),
    Fault(
        "core",
        "the queue's limit goes before that of the message",
        "Handling.limits",
        "timeout, soft = timeout or settings.timeout,",
        "timeout, soft = settings.timeout or timeout,",
        (*_LIMITS, "-k", "goes_before"),
    ),
    Fault(
        "core",
        "a loop that hangs keeps its message by its own renewal",
        "Renewal.run_once",
        "if message.fails_at is not None and message.fails_at <= now:",
        "if False:",
        (*_LIMITS, "-k", "keeps_the_message_no_longer"),
    ),
    Fault(
        "core",
        "the registry is not told of a handler that hangs",
        "Consumer._introduce",
        'card["hung"] = hung.count(name)',
        "pass",
        (*_LIMITS, "-k", "serves_the_others"),
    ),
    Fault(
        "core",
        "a traced program stands still while a handler that has passed its limit blocks in C",
        "_raise_in",
        "if sys.version_info < (3, 12):",
        "if False:",
        ("tests/faults/test_tracers.py",),
    ),
    Fault(
        "testing",
        "drain lets a handler run for ever",
        "DrainableQueue.attempt",
        "handling.limits(given, self.queue.settings)",
        "None",
        ("tests/testing/test_draining_limits.py", "-k", "goes_before"),
    ),
    # -- hooks -----------------------------------------------------------------------------------------------------
    Fault(
        "core",
        "a handler that a loop runs is outside the hooks of its queue",
        "HandlerRunner.__init__",
        "Handling.of(function, hooks)",
        "Handling.of(function)",
        ("tests/contract/test_tasks.py", "-k", "inside_hooks and sync"),
    ),
    Fault(
        "core",
        "the log says for every message that a loop leaves hooks out",
        "QueueHooks.warn_of_loop",
        "self._warned = bool(idle) or soft_timeout is not None",
        "self._warned = False",
        ("tests/contract/test_hooks_in_loops.py", "-k", "named_once and sync"),
    ),
    Fault(
        "core",
        "a misspelt method of a hook is never called and nobody says so",
        "_check_methods",
        "if near and callable(",
        "if not near and callable(",
        (*_HOOKS, "-k", "would_not_be_called"),
    ),
    Fault(
        "core",
        "the hooks of a consumer are outside those of its client",
        "chain",
        "for around in reversed(overridden(",
        "for around in tuple(overridden(",
        (*_HOOKS, "-k", "outside_those"),
    ),
    Fault(
        "core",
        "an error in a listener keeps the next one from being told",
        "Listeners.tell",
        """        for listener in listeners:
            try:
                listener(message, *details)
            except Exception:
""",
        """        for listener in listeners:
            try:
                listener(message, *details)
            except Exception:
                return
            except BaseException:
""",
        (*_HOOKS, "-k", "changes_nothing"),
    ),
    Fault(
        "core",
        "messages sent in a batch do not pass the hooks",
        "send_many",
        "if ref.sending:",
        "if False:",
        (*_HOOKS, "-k", "every_kind_of_send"),
    ),
    # -- failures --------------------------------------------------------------------------------------------------
    Fault(
        "core",
        "of a long traceback the outer frames are kept",
        "error_text",
        "kept.insert(0, frames.pop())",
        "kept.append(frames.pop(0))",
        (*_TEXTS, "-k", "innermost_frames"),
    ),
    Fault(
        "core",
        "the log does not say that a message is dead",
        "FailureLog.failed",
        'State.DEAD: "dead"',
        'State.DEAD: "nacked"',
        (*_HOOKS, "-k", "says_when"),
    ),
)

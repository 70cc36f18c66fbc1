"""Faults planted in tasks: arguments, what a send stores, what a consumer makes of it, definitions."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_TASK: Final = "tests/core/test_task.py"

FAULTS: Final = (
    Fault(
        "core",
        "a call of a task without a required argument is stored",
        "TaskArguments._converted",
        "if name not in converted:",
        "if False:",
        (_TASK, "-k", "does_not_fit_is_refused"),
    ),
    Fault(
        "core",
        "True is taken for an int",
        "_check_scalar",
        "if type(value) not in allowed:",
        "if not isinstance(value, allowed):",
        (_TASK, "-k", "does_not_fit_is_refused"),
    ),
    Fault(
        "core",
        "a model that JSON does not give back is stored, and fails in the handler",
        "_pydantic_conversions",
        "            to_python(plain)",
        "            pass",
        (_TASK, "-k", "take_back or alias"),
    ),
    Fault(
        "core",
        "pydantic converts text into numbers at a send",
        "_pydantic_conversions",
        "adapter.validate_python(value, strict=True)",
        "adapter.validate_python(value)",
        (_TASK, "-k", "does_not_fit_is_refused"),
    ),
    Fault(
        "core",
        "two tasks that are unique by the same arguments are one message",
        "TaskDefinition.unique_key",
        """text = f"{self.kind}:{json.dumps""",
        """text = f"{json.dumps""",
        (_TASK, "-k", "unique_by_arguments"),
    ),
    Fault(
        "core",
        "a default that is given counts as another unique key",
        "TaskDefinition.unique_key",
        "payload[name] if name in payload else self._defaults[name]",
        "payload.get(name)",
        (_TASK, "-k", "unique_by_arguments"),
    ),
    Fault(
        "core",
        "using() changes the task itself",
        "AnyTask.using",
        "other = copy.copy(self)",
        "other = self",
        (_TASK, "-k", "a_send_may_have_others"),
    ),
    Fault(
        "core",
        "a consumer of coroutines starts threads for messages of unknown kinds",
        "with_every_kind",
        "None: refuse if plain else refuse_async",
        "None: refuse",
        (_TASK, "-k", "without_a_handler"),
    ),
    Fault(
        "core",
        "a second task of the same name takes the first one's messages",
        "claim",
        "if kind in handlers:",
        "if False:",
        (_TASK, "-k", "one_task_or_handler"),
    ),
    Fault(
        "core",
        "the message is one of the arguments of a send",
        "TaskDefinition._parameters",
        "return every[1:], True",
        "return every, True",
        (_TASK, "-k", "if_they_ask"),
    ),
)

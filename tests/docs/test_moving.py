"""The guide for those who come from another system names only options, commands and names that exist."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import typer.main

import restante
from restante import LeasedMessage, Queue, QueueSettings
from restante.cli.entry import app
from restante.core.settings import QueueOptions
from restante.core.task import SendingOptions, TaskOptions
from tests.docs.pages import ROOT, Page

GUIDE = Page(ROOT / "docs/guide/moving-to-tasks.md")
#: The code spans of the right column of each row.
OURS = [
    span
    for line in GUIDE.text.splitlines()
    if line.startswith("| ")
    for span in re.findall(r"`([^`]+)`", re.split(r"(?<!\\) \| ", line.strip("| "))[-1])
]
#: The keywords of calls as the guide writes them.
KEYWORDS: dict[str, set[str]] = {
    "using": set(SendingOptions.__annotations__),
    "task": set(TaskOptions.__annotations__),
    "exponential": set(inspect.signature(restante.exponential).parameters),
    "nack": set(inspect.signature(LeasedMessage.nack).parameters),
    "result": set(inspect.signature(restante.Handle.result).parameters),
}
#: Options of a queue or of a task that the guide writes alone, such as `timeout=60`.
OPTIONS = {*QueueOptions.__annotations__, *TaskOptions.__annotations__}


def calls(span: str) -> list[ast.Call]:
    """The calls in a span of Python; none in a command or a word."""
    try:
        tree = ast.parse(span.removeprefix("@").replace("…", "..."))
    except SyntaxError:
        return []
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call)]


@pytest.mark.parametrize("span", [span for span in OURS if calls(span)])
def test_the_guide_calls_what_exists_with_its_options(span: str) -> None:
    homes: tuple[Any, ...] = (restante, Queue, LeasedMessage, restante.Task, restante.Handle, restante.Client)
    for call in calls(span):
        name = call.func.attr if isinstance(call.func, ast.Attribute) else ast.unparse(call.func)
        assert name == "ship" or any(hasattr(home, name) for home in homes), span
        given = {one.arg for one in call.keywords if one.arg}
        if name in ("send", "draft", "ship"):
            assert given <= {"order"}
        else:
            assert given <= KEYWORDS.get(name, set()), span


@pytest.mark.parametrize("span", [span for span in OURS if re.fullmatch(r"(\w+)=.*", span) and "(" not in span])
def test_the_guide_names_options_that_exist(span: str) -> None:
    assert span.partition("=")[0] in OPTIONS | set(QueueSettings.__annotations__)


@pytest.mark.parametrize("span", [span for span in OURS if span.startswith("restante ")])
def test_the_guide_names_commands_that_exist(span: str) -> None:
    commands: dict[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]  # a group
    command = commands[span.split()[1]]
    spellings = {spelling for option in command.params for spelling in option.opts}
    assert {word for word in span.split() if word.startswith("--")} <= spellings


def test_attributes_of_a_message_in_the_guide_exist() -> None:
    used = {span for span in OURS if re.fullmatch(r"message\.\w+", span)}
    assert len(used) >= 2
    missing: Callable[[str], bool] = lambda span: not hasattr(LeasedMessage, span.partition(".")[2])  # noqa: E731
    assert [span for span in used if missing(span) and span != "message.id"] == []

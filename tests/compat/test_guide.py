"""The guide to moving names only settings, options, modules and commands that exist."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest
import typer.main
from celery.app.defaults import SETTING_KEYS

from restante import exponential
from restante.bus import Bus, BusClient, Event
from restante.bus.options import PublishOptions, TaskOptions
from restante.cli.entry import app
from restante.compat import pyrsmq
from restante.compat.amqp_events import defaults
from restante.compat.amqp_events.celery import EventsCelery, events_app
from restante.compat.tchu_tchu import TchuEvent, setup_celery_queue, subscribe
from restante.compat.tchu_tchu.client import TchuClient
from restante.compat.tchu_tchu.django import Celery
from restante.compat.tchu_tchu.producer import _OPTIONS
from restante.rabbitmq.topology import TopologyOptions
from tests.docs.pages import ROOT, Page

GUIDE = Page(ROOT / "docs/guide/moving-events.md")
SPANS = re.findall(r"`([^`\n]+)`", GUIDE.prose)

#: Callables as the guide writes them, and which keywords each takes beyond its signature.
CALLS: dict[str, tuple[Callable[..., Any], frozenset[str]]] = {
    "Bus": (Bus, frozenset()),
    "bus.publish": (Bus.publish, PublishOptions.__optional_keys__),
    "bus.subscribe": (Bus.subscribe, TaskOptions.__optional_keys__),
    "client.publish": (TchuClient.publish, frozenset(_OPTIONS)),
    "events_app": (events_app, frozenset(SETTING_KEYS) | inspect.signature(EventsCelery).parameters.keys()),
    "app.handler": (EventsCelery.handler, frozenset()),
    "app.message_broker": (Celery.message_broker, frozenset()),
    "setup_celery_queue": (setup_celery_queue, frozenset()),
    "subscribe": (subscribe, frozenset()),
    "client.call": (TchuClient.call, frozenset()),
    "exponential": (exponential, frozenset()),
    "UserCreated": (TchuEvent, frozenset()),
}


def called() -> list[tuple[str, str]]:
    """Every keyword of every known call in a code span or block."""
    found = set()
    for text in (*SPANS, *(block.text for block in GUIDE.blocks("python"))):
        try:
            tree = ast.parse(re.sub(r"^(\.)", r"client\1", text.removeprefix("@").replace("…", "...")))
        except SyntaxError:
            continue  # a command, a table's words
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := ast.unparse(node.func)) in CALLS:
                found |= {(name, one.arg) for one in node.keywords if one.arg}
    return sorted(found)


@pytest.mark.parametrize(("name", "keyword"), called())
def test_a_keyword_the_guide_gives_is_taken(name: str, keyword: str) -> None:
    function, more = CALLS[name]
    assert keyword in {*inspect.signature(function).parameters, *more}


def test_calls_were_found() -> None:
    assert {name for name, _ in called()} >= set(CALLS) - {"setup_celery_queue", "app.handler"}


def test_settings_of_the_environment_are_there() -> None:
    named = set(re.findall(r"AMQP_EVENTS_\w+", GUIDE.text))
    assert named == {name for name in vars(defaults) if name.startswith("AMQP_EVENTS_")}
    assert all(isinstance(getattr(defaults, name), int) for name in named)


def test_options_of_rabbitmq_events_and_celery_are_there() -> None:
    given = re.findall(r"[{,] ?\"(\w+)\":", " ".join(span for span in SPANS if "archive" in span))
    assert given == ["archive_seconds", "archive_length", "archive"]
    assert set(given) <= set(inspect.signature(TopologyOptions).parameters)
    settings = {word for span in SPANS for word in re.findall(r"^((?:task|result|broker)_\w+)(?: = .*)?$", span)}
    assert settings == {"task_queues", "task_routes", "task_default_exchange", "result_backend", "result_expires"}
    assert settings <= SETTING_KEYS
    assert set(inspect.signature(Event.__init_subclass__).parameters) >= {"topic", "response", "error"}
    for name in ("publish", "call", "subscribe", "answer", "event", "call_all"):
        assert f"bus.{name}" in GUIDE.text or f"`{name}`" in GUIDE.text
        assert callable(getattr(Bus, name))
    for name in ("set_context_helper", "request_context"):
        assert hasattr(TchuEvent, name)
    assert callable(BusClient)


def test_every_import_of_ours_works() -> None:
    texts = [span for span in SPANS if span.startswith("from restante")]
    texts += [block.text for block in GUIDE.blocks("python")]
    seen = 0
    for text in texts:
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom):
                module = importlib.import_module(node.module or "")
                assert all(hasattr(module, alias.name) for alias in node.names)
                seen += 1
    assert seen >= 6
    for name in set(re.findall(r"`(restante\.(?:compat|bus)[\w.]*)`", GUIDE.text)):
        parent, _, last = name.rpartition(".")
        assert hasattr(importlib.import_module(parent), last) or importlib.import_module(name)


def test_every_command_and_its_options_are_there() -> None:
    lines = [line[2:] for block in GUIDE.blocks("console") for line in block.text.splitlines()]
    lines += [span for span in SPANS if span.startswith("restante ")]
    assert len(lines) >= 6
    for line in lines:
        program, *words = line.split()
        assert program == "restante"
        command: Any = typer.main.get_command(app)
        while words and hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {spelling for option in command.params for spelling in option.opts}
        assert {word for word in words if word.startswith("--")} <= known, line


def test_the_reference_names_what_each_module_has() -> None:
    page = Page(ROOT / "docs/reference/compat.md")
    for part in re.split(r"^## ", page.text, flags=re.MULTILINE)[1:]:
        package = part[1 : part.index("`", 1)]
        for modules, names in re.findall(r"^\| (.+?) \| (`.+?) \|$", part, re.MULTILINE):
            found = [f"{package}.{one}" for one in re.findall(r"`([\w.]+)`", modules)]
            if modules.startswith("the package itself"):
                found.append(package)
            has = {name for one in found for name in vars(importlib.import_module(one))}
            assert set(re.findall(r"`(\w+)[`(]", names)) <= has, found


def test_the_guide_for_pyrsmq_names_what_is_there() -> None:
    page = Page(ROOT / "docs/guide/rsmq.md")
    part = page.text[page.text.index("## Coming from PyRSMQ") : page.text.index("## Command line")]
    block = next(one.text for one in page.blocks("python") if "restante.compat.pyrsmq" in one.text)
    program: dict[str, Any] = {}
    exec(next(line for line in block.splitlines() if line.startswith("from ")), program)
    assert program["RedisSMQ"] is pyrsmq.RedisSMQ
    commands = set(re.findall(r"(?:queue\.|\b)((?:create|send|receive|delete|pop|set|get|change)[A-Z]\w+)\b", part))
    assert commands
    assert all(hasattr(pyrsmq.RedisSMQ, name) for name in commands)
    for keyword in re.findall(r"`(\w+)=`", part):
        assert keyword in inspect.signature(pyrsmq.RedisSMQ).parameters
    assert "retry_delay" in inspect.signature(pyrsmq.RedisSMQConsumer).parameters
    for name in ("RedisSMQConsumer", "RedisSMQConsumerThread", "QueueDoesNotExist"):
        assert f"`{name}`" in part
        assert hasattr(pyrsmq, name)

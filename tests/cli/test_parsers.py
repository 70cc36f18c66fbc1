"""Only the parser of the called command is built, and it equals that of the whole program."""

from __future__ import annotations

from typing import Any

import pytest
from typer.main import get_command

from restante.cli.entry import _program_for, app


def told(command: Any) -> list[tuple[str, Any]]:
    """A command's parameters and help, including its subcommands."""
    found = [(command.name, command.help)]
    found += [(one.name, (one.opts, one.required, one.nargs)) for one in command.params]
    for other in getattr(command, "commands", {}).values():
        found += told(other)
    return found


def test_each_command_is_built_alone_and_is_the_same() -> None:
    whole: Any = get_command(app)
    assert {"send", "ls", "pipeline", "rsmq"} <= set(whole.commands)
    for name, command in whole.commands.items():
        part: Any = get_command(_program_for(["--json", "--url", "redis://127.0.0.1:1", name, "--help"]))
        assert list(part.commands) == [name]
        assert told(part.commands[name]) == told(command)


@pytest.mark.parametrize(
    "words", [[], ["--help"], ["--version"], ["--install-completion"], ["nosuch"], ["--url", "ls"]]
)
def test_what_names_no_command_gets_the_whole_program(words: list[str]) -> None:
    assert _program_for(words) is app

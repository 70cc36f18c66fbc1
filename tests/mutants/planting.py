"""A planted fault as a value: what is wrong, in which function, and which text changes.

A fault names its room and its function, not its file, so it survives moved and renamed modules. Planting fails if the
function or the text is not found exactly once; a catalogue that no longer fits the code is an error, never a pass.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path


class NotPlanted(Exception):
    """The function or the text to change was not found exactly once."""


@dataclass(frozen=True)
class Fault:
    """One realistic mistake."""

    #: The folder below `src/restante`, or `dashboard`.
    room: str
    #: What the program does wrong, as a reader of a bug report would put it.
    what: str
    #: `Class.method` or `function`; in the dashboard, and for a script of Lua, the file's name.
    where: str
    old: str
    new: str
    #: Arguments for pytest: the closest tests.
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.room}: {self.what}"


def locate(fault: Fault, checkout: Path) -> tuple[Path, int, int]:
    """The one file that holds the text to change, and where the function around it begins and ends."""
    if fault.room == "dashboard":
        places = [(file, 0, len(file.read_text())) for file in sorted((checkout / "dashboard/src").rglob(fault.where))]
    elif fault.where.endswith(".lua"):
        scripts = sorted((checkout / "src" / "restante" / fault.room).rglob(fault.where))
        places = [(file, 0, len(file.read_text())) for file in scripts]
    else:
        places = list(_functions(checkout / "src" / "restante" / fault.room, fault.where))
    fitting = [place for place in places if _text(place).count(fault.old) == 1]
    if len(fitting) != 1:
        raise NotPlanted(
            f"{fault.name}: {fault.where} was found {len(places)} times, its text to change in {len(fitting)} of them"
        )
    return fitting[0]


def plant(fault: Fault, checkout: Path) -> Path:
    """Changes the one file of the checkout that holds the function; returns its path."""
    file, begin, end = locate(fault, checkout)
    source = file.read_text()
    changed = source[:begin] + source[begin:end].replace(fault.old, fault.new) + source[end:]
    if file.suffix == ".py":
        ast.parse(changed)
    file.unlink()  # the checkout may be made of hard links
    file.write_text(changed)
    return file


def _text(place: tuple[Path, int, int]) -> str:
    file, begin, end = place
    return file.read_text()[begin:end]


def _functions(room: Path, name: str) -> Iterator[tuple[Path, int, int]]:
    """Every function or class of this qualified name in a room: its file, and where its text begins and ends."""
    files = [room.with_suffix(".py")] if room.with_suffix(".py").is_file() else sorted(room.rglob("*.py"))
    for file in files:
        for qualified, begin, end in _named(file.read_text()):
            if qualified == name:
                yield file, begin, end


@cache
def _named(source: str) -> list[tuple[str, int, int]]:
    """Every function and class of a module: its qualified name, and where its text begins and ends."""
    starts = [0]
    for line in source.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found = []
    for qualified, node in _definitions(ast.parse(source), ""):
        assert node.end_lineno is not None
        found.append((qualified, starts[node.lineno - 1], starts[node.end_lineno]))
    return found


_Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _definitions(node: ast.AST, prefix: str) -> Iterator[tuple[str, _Definition]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _Definition):
            yield prefix + child.name, child
            yield from _definitions(child, f"{prefix}{child.name}.")
        else:
            yield from _definitions(child, prefix)

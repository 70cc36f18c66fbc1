"""No room uses another room's underscores: what a room may use of the one below has a public name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

SOURCE: Final = Path(__file__).parents[2] / "src" / "restante"
ROOMS: Final = sorted(folder.name for folder in SOURCE.iterdir() if (folder / "__init__.py").exists())
#: Of foreign packages, which have no public name for them, and of named tuples, whose public methods begin so.
FOREIGN: Final = {
    "_active_tags",
    "_consume_from",
    "_decoded_cache",
    "_ensure_initialized",
    "_eta",
    "_exit",
    "_gateway",
    "_get_current_object",
    "_get_exec_options",
    "_message",
    "_orig_day_of_month",
    "_orig_day_of_week",
    "_orig_hour",
    "_orig_minute",
    "_orig_month_of_year",
    "_current_frames",
    "_getframe",
    "_parser",
    "_reader",
    "_replace",
    "_run_exitfuncs",
    "_sock",
}


def names_of(tree: ast.Module) -> set[str]:
    """The names that a module gives to attributes, functions and classes of its own."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_own(node):
            found.add(node.attr)
    return found


def is_own(node: ast.Attribute) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def foreign_underscores(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Underscores of other modules that a module uses: attributes of values, and imported names."""
    own = names_of(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in own | FOREIGN:
            if not is_own(node):
                yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("restante"):
            yield from ((node.lineno, alias.name) for alias in node.names if is_private(alias.name))


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_uses_no_underscore_of_another_module(room: str) -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line} {name}"
        for path in sorted((SOURCE / room).rglob("*.py"))
        for line, name in foreign_underscores(ast.parse(path.read_text()))
    ]
    assert found == []


def test_an_underscore_of_another_module_is_found() -> None:
    tree = ast.parse(
        "from restante.core.queue import _presence\nclass A:\n    def f(self, q):\n        q._ref, self._x\n"
    )
    assert sorted(foreign_underscores(tree)) == [(1, "_presence"), (4, "_ref")]

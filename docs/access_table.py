"""Generates the table of routes and roles in `explain/threat-model.md`: `python docs/access_table.py`."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi.routing import APIRoute

from restante.server.access import Caller, Role
from restante.server.app import UNGUARDED, api_routes
from restante.server.routing import role_of

PAGE = Path(__file__).parent / "explain" / "threat-model.md"
_SPACE = re.compile(r"(<!-- routes:start -->\n).*?(\n<!-- routes:end -->)", re.DOTALL)


def _row(path: str, route: APIRoute, method: str) -> str:
    needed = role_of(route)
    if route.name.rstrip("_") in UNGUARDED:
        allowed = [True] * (len(Role) + 1)
    else:
        allowed = [False, *(needed is None or Caller("", frozenset({role})).may(needed) for role in Role)]
    return f"| `{method} {path}` | {' | '.join('yes' if one else '' for one in allowed)} |"


def table() -> str:
    """Every route of the API with the roles that may call it."""
    lines = [f"| Route | no token | {' | '.join(f'`{role}`' for role in Role)} |", f"|---|{'---|' * (len(Role) + 1)}"]
    lines += [_row(path, route, method) for path, route in api_routes() for method in sorted(route.methods or ())]
    return "\n".join(lines)


def page() -> str:
    """The page with the current table."""
    return _SPACE.sub(lambda found: found[1] + table() + found[2], PAGE.read_text())


if __name__ == "__main__":
    PAGE.write_text(page())

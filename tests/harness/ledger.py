"""What handlers did, in a file outside the broker: one JSON object per line, which survives whoever wrote it.

A process that is killed while it writes leaves a part of a line. The next line begins after a line break of its own, so
that nothing but that part is lost.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


def note(kind: str, **facts: Any) -> None:
    """Adds a line to the file that the environment names."""
    told = {"kind": kind, "at": time.time(), "pid": os.getpid(), "parent": os.getppid(), **facts}
    file = os.open(os.environ["LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"\n{json.dumps(told)}\n".encode())
    os.close(file)


def read_ledger(path: Path) -> list[dict[str, Any]]:
    """Every whole line."""
    found = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue  # empty, not written to its end yet, or torn by a kill
    return found

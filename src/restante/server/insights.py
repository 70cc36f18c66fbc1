"""What the Insights page is told: whether the lake has a report, and what its pipeline is doing.

The pipeline runs elsewhere and keeps its word in the lake as `_progress.json`. A file that is not there or of another
version is told as no progress.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

#: The pipeline's file in the lake.
PROGRESS = "_progress.json"
#: Seconds without a word after which a pipeline that had not ended is taken for killed; it speaks every two.
SILENCE = 20.0
_NUMBERS = ("done", "total", "rows", "rows_expected", "started_at", "updated_at")
_RUN = "restante pipeline run --lake {lake} --report {lake}/report.html"
_REPORT = "restante pipeline report --lake {lake} --out {lake}/report.html"


def insights_out(lake: Path | None) -> dict[str, Any]:
    """The answer for the lake the server was started with, if it was."""
    if lake is None:
        hint = "restante up --lake DIR"
        return {"available": False, "made_at": None, "hint": hint, "progress": None}
    report, progress = lake / "report.html", _progress(lake / PROGRESS)
    try:
        made_at = round(report.stat().st_mtime * 1000)
    except OSError:
        filled = progress is not None and not progress["report"] and progress["state"] in ("done", "running")
        hint = (_REPORT if filled else _RUN).format(lake=lake)
        return {"available": False, "made_at": None, "hint": hint, "progress": progress}
    return {"available": True, "made_at": made_at, "hint": "", "progress": progress}


def _progress(path: Path) -> dict[str, Any] | None:
    try:
        found = orjson.loads(path.read_bytes())
        told: dict[str, Any] = {name: int(found[name]) for name in _NUMBERS}
        told["report"] = bool(found["report"])
        told["phase"], told["error"] = str(found["phase"]), str(found["error"])
        told["ended_at"] = None if found["ended_at"] is None else int(found["ended_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if told["error"]:
        told["state"] = "failed"
    elif told["ended_at"] is not None:
        told["state"] = "done"
    else:
        told["state"] = "running" if time.time() * 1000 - told["updated_at"] < SILENCE * 1000 else "lost"
    return told

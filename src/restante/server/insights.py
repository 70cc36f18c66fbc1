"""State of the data pipeline for the Insights page: whether the lake has a report, and how far the next one is.

The pipeline runs elsewhere and writes its progress into the lake as `_progress.json`. A missing file, or one of
another version, counts as no progress.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import orjson

#: File name of the pipeline's progress in the lake.
PROGRESS = "_progress.json"
#: Seconds without an update after which an unfinished pipeline counts as killed. It writes every two seconds.
SILENCE = 20.0
_NUMBERS = ("done", "total", "rows", "rows_expected", "started_at", "updated_at")
_RUN = "restante pipeline run --lake {lake} --report {lake}/report.html"
_REPORT = "restante pipeline report --lake {lake} --out {lake}/report.html"


def insights_out(lake: Path | None) -> dict[str, Any]:
    """The response for the server's lake, or for a server without one."""
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
        stored = orjson.loads(path.read_bytes())
        progress: dict[str, Any] = {name: int(stored[name]) for name in _NUMBERS}
        progress["report"] = bool(stored["report"])
        progress["phase"], progress["error"] = str(stored["phase"]), str(stored["error"])
        progress["ended_at"] = None if stored["ended_at"] is None else int(stored["ended_at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if progress["error"]:
        progress["state"] = "failed"
    elif progress["ended_at"] is not None:
        progress["state"] = "done"
    else:
        progress["state"] = "running" if time.time() * 1000 - progress["updated_at"] < SILENCE * 1000 else "lost"
    return progress

"""Watches the source files of the working directory; a change restarts the processes of `restante consume --reload`.

For development. On failure: to import it without the package `watchfiles` raises MissingExtra.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from restante.core.extras import needs_extra

with needs_extra("reload", "--reload"):
    from watchfiles import PythonFilter, watch

log = logging.getLogger("restante")

#: File names that one log line shows.
_SHOWN = 3


@contextmanager
def watching_sources(changed: Callable[[], None]) -> Iterator[None]:
    """Calls `changed` in another thread, inside the block, whenever Python files of this directory were saved."""
    place, over = Path.cwd(), threading.Event()
    logging.getLogger("watchfiles").setLevel(logging.WARNING)  # it would say the same as we do

    def follow() -> None:
        for changes in watch(place, watch_filter=PythonFilter(), stop_event=over, raise_interrupt=False):
            names = sorted({str(Path(path).relative_to(place)) for _, path in changes})
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            log.info("reloading changed=%s", ", ".join(names[:_SHOWN]) + more)
            changed()

    threading.Thread(target=follow, name="restante-reload", daemon=True).start()
    try:
        yield
    finally:
        over.set()

"""Registers a pipeline with the journals before Spark starts, and with those of queues that appear later.

A journal is trimmed behind its slowest registered reader. A pipeline that registered with its first batch would miss
the lines trimmed while the JVM started, or before it saw a new queue. On failure: registration is tried again
`LOOK_SECONDS` later; the lake's coverage shows lines lost meanwhile.
"""

from __future__ import annotations

import logging
import threading
from typing import Self

from restante.core.admin import Admin
from restante.core.errors import RestanteError
from restante.core.journal_reader import JournalReader, Place
from restante.core.queue import Client
from restante.core.settings import ClientSettings
from restante.spark.options import Options

log = logging.getLogger("restante")

#: The default name under which a pipeline registers.
READER = "pipeline"
#: Seconds between two looks for new queues. One that writes more than `journal_keep` lines in between loses some.
LOOK_SECONDS = 0.5
#: Every so many looks check all queues again: a queue that was dropped and recreated has a new journal.
LOOKS = 20
#: Seconds for which a look repeats calls to a server that is away: short, because the next look comes soon.
PATIENCE = 0.5


class Registration:
    """Keeps a reader registered with every journal it reads: `with Registration(url): spark = session(); …`.

    The reader stays registered after the block, so that the next run finds every line. `withdraw` unregisters it where
    nothing will be read after all.
    """

    def __init__(self, url: str, *, queues: str = "*", reader: str = READER) -> None:
        self._options = Options(queues=queues)
        self._reader = reader
        self._url = url
        self._post: Client | None = None
        self._seen: set[str] = set()
        self._added: set[str] = set()
        self._looks = 0
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def look(self) -> dict[str, Place]:
        """Registers with journals that do not have the reader yet; returns the places of the journals it looked at."""
        if self._post is None:
            self._post = Client(self._url, ClientSettings(patience=PATIENCE))
        if self._looks % LOOKS == 0:
            self._seen.clear()
        self._looks += 1
        journals = JournalReader(self._post)
        names = self._options.matching(Admin(self._post).queues())
        places: dict[str, Place] = {}
        for name in names:
            if name in self._seen:
                continue
            place = journals.place(name)
            if place is not None and self._reader not in place.readers:
                place = journals.claim(name, self._reader)
                self._added.add(name)
            if place is not None:
                places[name] = place
                self._seen.add(name)
        return places

    def unread(self) -> int:
        """How many journal lines the reader has not read."""
        self._looks = 0
        return sum(place.last - max(place.floor, place.readers.get(self._reader, 0)) for place in self.look().values())

    def withdraw(self) -> None:
        """Unregisters what this object registered: journals must not keep lines for a reader that never comes."""
        self._end()
        if self._post is not None:
            journals = JournalReader(self._post)
            for name in self._added:
                journals.forget(name, self._reader)
        self._added.clear()

    def __enter__(self) -> Self:
        try:
            self.look()
        except RestanteError as error:
            log.warning("not registered reader=%s error=%s", self._reader, type(error).__name__)
        self._stop.clear()
        self._thread = threading.Thread(target=self._watch, name="restante-registration", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._post is not None:
            self._post.close()
            self._post = None

    def _end(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _watch(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
            except RestanteError as error:
                log.debug("not registered reader=%s error=%s", self._reader, type(error).__name__)

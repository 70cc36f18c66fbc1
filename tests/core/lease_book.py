"""A consumer's lease journal in plain Python: who may write it, its rows in entries, and the verdicts on them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.core.verbs import Token

Row = Mapping[str, Any]


class LeaseBook:
    """The part of the model that a verdict outlives its lease in."""

    def __init__(self) -> None:
        self.owner = ""
        self.until = 0
        self.last = 0
        #: The first token of the last call that named leases; None before anybody held it.
        self.begun: str | None = None
        self.verdicts: dict[str, str] = {}
        #: One list of rows per call, each with its number.
        self._entries: list[list[tuple[int, Row]]] = []

    def rows(self) -> dict[str, Row]:
        """What can be read, by number."""
        return {str(number): row for entry in self._entries for number, row in entry}

    def holder(self) -> str:
        """What the queue says of it; "" before anybody held it."""
        return f"{self.owner}\t{self.until}\t{self.last}\t{self.begun}" if self.owner else ""

    def hold(self, now: int, owner: str, lasts: int, begun: str | None, rows: Sequence[Row]) -> tuple[int, str]:
        """Writes rows if this is the owner, or the one before it is no more; `begun` is the first token asked for."""
        if self.owner not in ("", owner) and self.until > now:
            return self.last, ""
        # A call whose answer was lost is made again: it begins with the same token, and its rows are there already.
        if rows and begun != self.begun:
            self._entries.append(list(enumerate(rows, self.last + 1)))
            self.last += len(rows)
        self.owner, self.until = owner, now + lasts
        self.begun = (self.begun or "") if begun is None else begun
        return self.last, owner

    def decided(self, verdict: str, pairs: Sequence[Token], lost: Sequence[int]) -> None:
        """Remembers the verdict on every lease that was not lost."""
        self.verdicts.update({token: verdict for at, (_, token) in enumerate(pairs, 1) if at not in lost})

    def clear(self, upto: int, limit: int) -> int:
        """Forgets whole entries up to a number; one that reaches beyond it stays whole."""
        gone = [entry for entry in self._entries if entry[-1][0] <= upto][:limit]
        for entry in gone:
            for _, row in entry:
                self.verdicts.pop(row["token"], None)
        self._entries = self._entries[len(gone) :]
        return len(gone)

"""Flags that start Debian's Chromium headless and offline, and a script that records what a page receives."""

from __future__ import annotations

from typing import Final

FLAGS: Final = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

#: Init script: records the journal lines that reach the page in `window.recorded`, each with the time of its arrival.
#: The browser runs on the server's machine, so both clocks are the same.
RECORD_JOURNAL: Final = """
window.recorded = [];
window.EventSource = class extends EventSource {
  constructor(...words) {
    super(...words);
    this.addEventListener("journal", ({ data }) => {
      const seen_at = Date.now();
      for (const { event, message_id, at } of JSON.parse(data)) {
        window.recorded.push({ event, message_id, at, seen_at });
      }
    });
  }
};
"""

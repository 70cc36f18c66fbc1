"""How Debian's Chromium is started without a screen, and without a word to anybody else."""

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

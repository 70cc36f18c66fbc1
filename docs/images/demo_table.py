"""Draws `demo.svg`: the table of a real `restante demo`, a while after the shop has opened.

Run it as `python docs/images/demo_table.py`. The drawing names no web font, so a page that shows it loads nothing else.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme

import restante
from restante.cli.live_table import LiveTable

#: Seconds the shop is open before the picture is taken; the first dead letters and retries take some.
OPEN_FOR = 45
#: Columns of the terminal drawn.
WIDTH = 132
_DARK = TerminalTheme(
    (17, 24, 39),
    (209, 213, 219),
    [
        (31, 41, 55),
        (244, 63, 94),
        (16, 185, 129),
        (245, 158, 11),
        (59, 130, 246),
        (129, 140, 248),
        (45, 212, 191),
        (209, 213, 219),
    ],
)


def photograph() -> str:
    """The table as SVG."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["--directory", directory, "demo", "--seconds", str(OPEN_FOR + 10)]
        shop = subprocess.Popen(
            [sys.executable, "-c", "from restante.cli import main; main()", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            time.sleep(2)
            with restante.connect(directory=directory) as post:
                table = LiveTable(restante.Admin(post), "Restante: a sample shop")
                for _ in range(OPEN_FOR):
                    table.refresh()
                    time.sleep(1)
                screen = Console(record=True, width=WIDTH, file=io.StringIO(), color_system="truecolor")
                screen.print(table.render(WIDTH))
        finally:
            shop.terminate()
            shop.wait(20)
    return screen.export_svg(title="make run", theme=_DARK)


def without_web_fonts(svg: str) -> str:
    """The drawing with fonts every system has."""
    svg = re.sub(r"@font-face\s*\{.*?\}", "", svg, flags=re.DOTALL)
    svg = re.sub(r"Fira Code,\s*monospace", "ui-monospace, DejaVu Sans Mono, Menlo, Consolas, monospace", svg)
    return "\n".join(line.rstrip() for line in svg.splitlines() if line.strip()) + "\n"


if __name__ == "__main__":
    Path(__file__).with_name("demo.svg").write_text(without_web_fonts(photograph()))

"""The pages of the documentation, and what is written in them: headings, links, and blocks that can be run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
#: Says, before a block, that it is only to be read, and why.
_READ_ONLY: Final = re.compile(r"<!-- no-run\b.*?-->\s*$")
#: The first line of a block that is a file of a reader's project.
_FILE: Final = re.compile(r"# (\S+\.(?:py|toml))\n")
_FENCE: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"(?<!`)\[[^\]\n]*\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    text: str
    #: Line of the page its text begins on.
    line: int
    runs: bool

    @property
    def file(self) -> str | None:
        """The name of the file that the block shows, if it is one: such blocks are the parts of a project."""
        found = _FILE.match(self.text)
        return found[1] if found else None


@dataclass(frozen=True)
class Page:
    """One Markdown file."""

    path: Path

    @property
    def name(self) -> str:
        return str(self.path.relative_to(ROOT))

    @property
    def text(self) -> str:
        return self.path.read_text()

    @property
    def prose(self) -> str:
        """The text without its blocks."""
        return _FENCE.sub("", self.text)

    def blocks(self, language: str) -> list[Block]:
        """Its blocks in one language, in order."""
        text = self.text
        return [
            Block(
                found[1],
                found[2],
                text.count("\n", 0, found.start(2)) + 1,
                _READ_ONLY.search(text[: found.start()].rstrip("\n")) is None,
            )
            for found in _FENCE.finditer(text)
            if found[1] == language
        ]

    def program(self) -> str:
        """The Python blocks that run, as one program whose line numbers are the page's."""
        lines: list[str] = []
        for block in self.blocks("python"):
            if block.runs and block.file is None:
                lines += [""] * (block.line - 1 - len(lines))
                lines += block.text.splitlines()
        return "\n".join(lines) + "\n" if lines else ""

    def project(self) -> dict[str, str]:
        """Its blocks that are files, by name; several blocks of one name are one file."""
        files: dict[str, str] = {}
        for block in (*self.blocks("toml"), *self.blocks("python")):
            if block.file is not None:
                files[block.file] = files.get(block.file, "") + block.text
        return files

    def commands(self) -> list[tuple[str, int]]:
        """The commands `restante …` of its console blocks that run, with the exit code each must have."""
        found = []
        for block in self.blocks("console"):
            for line in block.text.splitlines():
                if block.runs and line.startswith("$ restante "):
                    command, _, code = line[2:].partition("  # exit ")
                    found.append((command, int(code or 0)))
        return found

    def links(self) -> list[str]:
        """Where its links lead, without those to the web."""
        return [target for target in _LINK.findall(self.prose) if not re.match(r"[a-z]+:", target)]

    def headings(self) -> list[str]:
        """Its headings, without marks."""
        return [text.strip() for text in _HEADING.findall(self.prose)]

    def anchors(self) -> set[str]:
        """What a link may name behind `#`."""
        return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in self.headings()}


def all_pages() -> list[Page]:
    """Every page of the repository that is documentation."""
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*.md")]
    return [Page(path) for path in sorted(found)]

"""Topic patterns: words parted by dots, `*` for one word, `#` for none or more. Matched in linear time and space."""

from __future__ import annotations

from collections.abc import Sequence


def matches(pattern: str, topic: str) -> bool:
    """Whether a topic is one of those a pattern names."""
    return matches_words(pattern.split("."), topic.split("."))


def matches_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """The same for words. Going back only to the last `#` bounds the work by the product of both lengths."""
    at = place = 0
    anchor, resumed = -1, 0
    while place < len(words):
        if at < len(pattern) and pattern[at] == "#":
            anchor, resumed = at, place
            at += 1
        elif at < len(pattern) and pattern[at] in ("*", words[place]):
            at += 1
            place += 1
        elif anchor >= 0:
            resumed += 1
            at, place = anchor + 1, resumed
        else:
            return False
    return all(word == "#" for word in pattern[at:])

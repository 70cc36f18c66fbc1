"""Topics and patterns: words separated by dots, `*` for one word, `#` for none or more. No I/O."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from restante.core.errors import InvalidName

#: Characters of a topic or pattern: with the words of a ladder before it, it must fit into 255 bytes on RabbitMQ.
LONGEST_TOPIC = 180
#: Characters of a service's or handler's name.
LONGEST_WORD = 60
_WORD = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)


def valid_word(word: str, what: str) -> str:
    """Returns a name that is one word of a topic, such as a service's; raises InvalidName if it is not valid."""
    if not isinstance(word, str) or not _WORD.fullmatch(word) or len(word) > LONGEST_WORD or word[0] == "-":
        raise InvalidName(
            f"{what} {word!r:.80} is not valid: use 1 to {LONGEST_WORD} letters, digits, _ and -, no dots"
        )
    return word


def as_word(text: str) -> str:
    """Converts a topic or another name into one word: dots become dashes, and a long word ends in a digest."""
    word = re.sub(r"[^A-Za-z0-9_-]", "-", text).lstrip("-")
    if len(word) > LONGEST_WORD:
        word = f"{word[: LONGEST_WORD - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    return word


def valid_topic(topic: str) -> str:
    """Returns the topic if it is valid; raises InvalidName otherwise."""
    return _checked(topic, "topic", ())


def valid_pattern(pattern: str) -> str:
    """Returns the topic or pattern if it is valid; raises InvalidName otherwise."""
    return _checked(pattern, "pattern", ("*", "#"))


def is_topic(text: str) -> bool:
    """Whether a text is a valid topic."""
    try:
        return bool(valid_topic(text))
    except InvalidName:
        return False


def _checked(text: str, what: str, more: tuple[str, ...]) -> str:
    if (
        not isinstance(text, str)
        or not 0 < len(text) <= LONGEST_TOPIC
        or text[0] == "-"
        or not all(word in more or _WORD.fullmatch(word) for word in text.split("."))
    ):
        also = "; * (one word) and # (none or more) stand for whole words" if more else ""
        raise InvalidName(
            f"{what} {text!r:.80} is not valid: use words of letters, digits, _ and - separated by dots, at most "
            f"{LONGEST_TOPIC} characters{also}"
        )
    return text


def matches(pattern: str, topic: str) -> bool:
    """Whether a pattern matches a topic."""
    return matches_words(words_of(pattern), words_of(topic))


def words_of(text: str) -> list[str]:
    """Splits a topic into words. The empty topic has no words, as in RabbitMQ, and not one empty word."""
    return text.split(".") if text else []


def matches_words(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """`matches` for words. It backtracks only to the last `#`, so the work is at most the product of both lengths."""
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

"""Options of a program that may also stand behind its command."""

from __future__ import annotations

from collections.abc import Sequence


def options_first(
    args: Sequence[str], *, flags: Sequence[str], valued: Sequence[str], others: Sequence[str] = ()
) -> list[str]:
    """Returns the arguments with some options moved to the front: `flags`, and `valued` with their values.

    `others` take a value too and stay where they are; their value may look like an option.
    """
    front: list[str] = []
    rest: list[str] = []
    assigned = tuple(f"{name}=" for name in valued if name.startswith("--"))
    words = iter(args)
    for word in words:
        if word == "--":
            rest += [word, *words]
            break
        part = front if word in flags or word in valued or word.startswith(assigned) else rest
        part.append(word)
        if (word in valued or word in others) and (value := next(words, None)) is not None:
            part.append(value)
    return front + rest

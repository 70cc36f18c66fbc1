"""Log lines as JSON objects, one per line, for programs that collect them; values unknown to JSON become texts."""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any, Final

import orjson

#: A field of a log line's template: `queue=%s`, and `error=%s: %s`, whose value is class and text.
_FIELD: Final = re.compile(r"(\w+)=(%[-+ #0-9.]*[a-zA-Z](?:: %s)?)")
#: A placeholder of a template.
_PLACEHOLDER: Final = re.compile(r"%[-+ #0-9.]*[a-zA-Z]")
#: What every record has; other attributes were given as `extra=`.
_USUAL: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Formats a record as an object with time, level, logger, pid, message, and the line's key=value fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "message": record.getMessage(),
        }
        extra = {name: value for name, value in vars(record).items() if name not in _USUAL}
        # A field never hides what the record itself says.
        line = {**fields(record), **extra, **line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """The key=value fields of a record, numbers as numbers.

    They are read from the template and not from the text, in which the value of one may look like another.
    """
    template, arguments = str(record.msg), record.args
    if not isinstance(arguments, tuple) or "=" not in template:
        return {}
    # A doubled percent sign is no placeholder; two other characters keep the places of what follows.
    template = template.replace("%%", "  ")
    found: dict[str, Any] = {}
    for match in _FIELD.finditer(template):
        first = len(_PLACEHOLDER.findall(template[: match.start(2)]))
        used = arguments[first : first + len(_PLACEHOLDER.findall(match[2]))]
        if len(used) == 1 and isinstance(used[0], bool | int | float):
            found[match[1]] = used[0]
        else:
            try:
                found[match[1]] = match[2] % used
            except TypeError:
                continue  # the logging module itself reports a line whose arguments do not fit
    return found

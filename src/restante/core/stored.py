"""The stored form of a message: one string with the facts that the scripts need first and the payload last.

    line 1, the sequence number it was sent under          (added by the server, like sent_at)
    line 2, the facts:  sent_at ⇥ kind ⇥ priority ⇥ payload bytes
    line 3, the limits: lease_ms+expires_ms@due_ms ⇥ max_attempts ⇥ unique states ⇥ unique key, then ⇥ batch for a
            message that is part of one; empty for most messages
            (expires_ms counts from sent_at, or from due_ms if that is given and later)
    then CRC-32 of the bytes that the client wrote (4 bytes), length of the options (2 bytes), options (JSON), payload

Facts and limits are text because the scripts copy them into the journal; only clients read the options (encoding,
content type, headers, retry policy, timeout). A bit flipped on disk fails the checksum, and the message is buried as
Corrupt.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import marshal
import re
from datetime import date, time
from decimal import Decimal
from typing import Any
from uuid import UUID
from zlib import crc32

import orjson

from restante.core.errors import Corrupt, InvalidInput, InvalidPayload
from restante.core.names import valid_name
from restante.core.retry import RetryPolicy

_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_LONG_NUMBER = re.compile(rb"\d{19}")
_SCALARS = frozenset({str, int, float, bool, type(None)})
#: The upper bytes of NaN and infinity as marshal writes them. Other values may contain the same bytes.
_NOT_FINITE = re.compile(rb"[\xf0-\xff][\x7f\xff]")
_dumps, _marshal = orjson.dumps, marshal.dumps
#: The limits of most messages.
_UNBOUND = (None,) * 5
#: Bytes; headers and options together. Larger headers belong in the payload.
MAX_OPTIONS = 65535
#: Bytes of a unique key: it is part of the limits, which the scripts read at every move.
MAX_UNIQUE = 200


class Json:
    """A payload that already is JSON text: it is checked and stored as it is."""

    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text


def _check_json(body: bytes) -> str:
    """Checks JSON text and returns how it must be decoded; see `encode_json`."""
    try:
        orjson.loads(body)
    except ValueError as error:
        raise InvalidPayload(f"the payload is not valid JSON: {error}") from None
    # The fast decoder rounds integers beyond 64 bits; a long run of digits may be one.
    return "wide" if _LONG_NUMBER.search(body) else ""


def encode_json(value: Any, what: str = "payload") -> tuple[bytes, str]:
    """Returns the JSON text and its decoder: "" for the fast one, "wide" if numbers exceed 64 bits."""
    try:
        text = _dumps(value, None, _STRICT)
        if _exact(value, text):
            return text, ""
    except TypeError as error:
        if "64-bit" not in str(error):
            check_json_types(value, what)
            raise InvalidPayload(
                f"{what} cannot be sent as JSON: {error}; send JSON values with string keys, or bytes"
            ) from None
        check_json_types(value, what)
        return _encode_wide(value, what), "wide"
    check_json_types(value, what)
    _encode_wide(value, what)  # refuses NaN and infinity, which the fast encoder writes as null
    return text, ""


def _exact(value: Any, text: bytes) -> bool:
    """Whether the fast encoder certainly kept the value as it is; if not, a slower check decides.

    The fast encoder writes UUIDs and enum members as text and NaN and infinity as null, and has no option against it.
    `marshal` accepts only exact built-in types and keeps floats as they are, at a tenth of the cost of a walk.
    """
    try:
        written = _marshal(value)
    except ValueError:
        return False
    return b"null" not in text or _NOT_FINITE.search(written) is None


def decode_json(text: bytes) -> Any:
    """Decodes JSON text and keeps numbers beyond 64 bits exact. Raises ValueError if it is not JSON."""
    if _LONG_NUMBER.search(text) is None:
        return orjson.loads(text)
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise json.JSONDecodeError("nested too deeply", "", 0) from None


def _no_constant(word: str) -> Any:
    raise json.JSONDecodeError(f"{word} is not JSON", word, 0)


#: What to send instead of a value that is not JSON, by its type; the first match counts.
_REMEDIES: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (enum.Enum, "send its .value"),
    ((UUID, Decimal), "send str(value)"),
    ((date, time), "send value.isoformat()"),
    ((bytes, bytearray, memoryview), "send bytes as the whole payload, or base64 text inside it"),
    ((set, frozenset), "send sorted(value) or list(value)"),
    ((str, int, float, dict, list, tuple), "send a plain {base}, not a subclass of it"),
)
#: Deepest nesting of containers; the encoders refuse more.
_DEEPEST = 1000


def check_json_types(value: Any, what: str) -> None:
    """Raises InvalidPayload for the first value that is not exactly JSON, with its place and a remedy.

    The encoders alone would write enums, UUIDs and other keys as text and subclasses as their base type, so the
    receiver would get a different value.
    """
    waiting: list[tuple[Any, str, int]] = [(value, what, 0)]
    while waiting:
        item, place, depth = waiting.pop()
        kind = type(item)
        if depth > _DEEPEST:
            raise InvalidPayload(f"{what} cannot be sent as JSON: it is nested too deeply")
        if kind is dict:
            for key, inner in item.items():
                if type(key) is not str:
                    raise InvalidPayload(
                        f"{place} cannot be sent as JSON: its key {_short(key)} is {_article(key)}; use string keys"
                    )
                waiting.append((inner, f"{place}[{_short(key)}]", depth + 1))
        elif kind is list or kind is tuple:
            waiting += [(inner, f"{place}[{at}]", depth + 1) for at, inner in enumerate(item)]
        elif kind not in _SCALARS:
            raise InvalidPayload(f"{place} cannot be sent as JSON: it is {_article(item)}; {_remedy(item)}")


def _remedy(item: Any) -> str:
    if type(item).__module__.startswith("restante."):
        return "send a Draft by send_many([draft]), a call of a task by task.send(…)"
    if dataclasses.is_dataclass(item):
        return "send dataclasses.asdict(value)"
    for kinds, text in _REMEDIES:
        if isinstance(item, kinds):
            base = next((parent.__name__ for parent in type(item).__mro__[1:] if parent in _JSON_BASES), "value")
            return text.format(base=base)
    return "send JSON values with string keys, or bytes"


_JSON_BASES = frozenset({str, int, float, dict, list, tuple})


def _article(item: Any) -> str:
    name = type(item).__name__
    return f"an {name}" if name[:1] in "AEIOaeio" else f"a {name}"


def _short(item: Any) -> str:
    text = repr(item)
    return text if len(text) <= 60 else text[:57] + "…"


def _check_unique(unique: Any) -> None:
    try:
        fits = 1 <= len(unique.encode()) <= MAX_UNIQUE and "\t" not in unique and "\n" not in unique
    except (AttributeError, UnicodeEncodeError):
        fits = False
    if not fits:
        raise InvalidInput(f"unique must be text of 1 to {MAX_UNIQUE} bytes without tabs or line ends, not {unique!r}")


def _encode_wide(value: Any, what: str) -> bytes:
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidPayload(f"{what} cannot be sent as JSON: {error}; send JSON values, or bytes") from None


def encode(
    payload: Any,
    *,
    kind: str = "",
    priority: int = 0,
    headers: dict[str, Any] | None = None,
    content_type: str | None = None,
    lease_ms: int | None = None,
    expires_ms: int | None = None,
    expires_from: int | None = None,
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    unique: str | None = None,
    unique_states: str = "",
    timeout_ms: int | None = None,
    batch: str | None = None,
) -> tuple[bytes, int]:
    """Returns the stored form without sent_at, and the payload's size in bytes."""
    body, options = _encode_body(payload, content_type)
    if kind:
        valid_name(kind, "kind")
    if headers:
        if not isinstance(headers, dict):
            raise InvalidInput(f"headers must be a dict, not {type(headers).__name__}")
        options["h"] = headers
    if retry is not None:
        options["r"] = retry.text()
    if timeout_ms is not None:
        options["t"] = timeout_ms
    extra = encode_json(options, "headers")[0] if options else b""
    if len(extra) > MAX_OPTIONS:
        raise InvalidInput(f"headers take {len(extra)} bytes, more than {MAX_OPTIONS}: move them into the payload")
    limits = b""
    bounds = (lease_ms, expires_ms, max_attempts, unique, batch)
    if bounds != _UNBOUND:
        if unique is not None:
            _check_unique(unique)
        first = f"{lease_ms or ''}"
        if expires_ms is not None:
            first += f"+{expires_ms}" if expires_from is None else f"+{expires_ms}@{expires_from}"
        limits = f"{first}\t{max_attempts or ''}\t{unique_states}\t{unique or ''}".encode()
        if batch is not None:
            limits += f"\t{batch}".encode()
    head = b"%b\t%d\t%d\n%b\n" % (kind.encode(), priority, len(body), limits)
    tail = b"%b%b%b" % (len(extra).to_bytes(2), extra, body)
    return head + crc32(tail, crc32(head)).to_bytes(4) + tail, len(body)


def _encode_body(payload: Any, content_type: str | None) -> tuple[bytes, dict[str, Any]]:
    """The payload's bytes, and the options that say how to read them; none for plain JSON."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), {"e": "bytes", "c": content_type or "application/octet-stream"}
    body, reading = (payload.text, _check_json(payload.text)) if type(payload) is Json else encode_json(payload)
    plain = not reading and not content_type
    return body, {} if plain else {"e": reading, "c": content_type or "application/json"}


def encode_plain(payload: Any, priority: int) -> tuple[bytes, int]:
    """`encode` for the most common message: a JSON value and a priority."""
    # `encode_json` and `_exact` inlined, because this runs once per sent message.
    try:
        body = _dumps(payload, None, _STRICT)
        written = _marshal(payload)
    except (TypeError, ValueError):
        return encode(payload, priority=priority)
    if b"null" in body and _NOT_FINITE.search(written) is not None:
        encode_json(payload)
    size = len(body)
    head = b"\t%d\t%d\n\n" % (priority, size)
    return b"%b%b\0\0%b" % (head, crc32(body, crc32(b"\0\0", crc32(head))).to_bytes(4), body), size


_UNREAD = object()
DAMAGED = "the stored message is damaged"
#: Sequence number, then the facts, then the limits.
_HEAD = re.compile(rb"\d+\n(\d{1,18})\t([^\t\n]*)\t(\d{1,18})\t(\d{1,18})\n([^\n]*)\n")
#: lease_ms, expires_ms, due_ms, max_attempts, unique states, unique key, batch; or an empty line.
_LIMITS = re.compile(
    r"(?:(\d{0,18})(?:\+(\d{1,18})@?(\d{0,18}))?\t(\d{0,18})\t([^\t]*)\t([^\t]*)(?:\t(.+))?)?", re.DOTALL
)


def sound(raw: bytes) -> bool:
    """Whether the checksum matches, so that the bytes are those that were sent."""
    start = raw.find(b"\t") + 1
    at = raw.find(b"\n", raw.find(b"\n", start) + 1) + 1
    sequence, _, sent = raw[: start - 1].partition(b"\n")
    return (
        sequence.isdigit()
        and sent.isdigit()
        and int.from_bytes(raw[at : at + 4]) == crc32(raw[at + 4 :], crc32(raw[start:at]))
    )


class Stored:
    """A stored form, decoded part by part on access."""

    #: False for a preview on a page of a list, whose payload is cut and cannot be checked.
    whole: bool = True
    _parts: tuple[list[bytes], list[str], int] | None = None
    _kind: str | None = None
    _options: dict[str, Any] | None = None
    _payload: Any = _UNREAD

    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def _split(self) -> tuple[list[bytes], list[str], int]:
        """Facts, limits, and the offset of the options' length; raises Corrupt if they cannot be read."""
        if self._parts is None:
            head = _HEAD.match(self.raw)
            limits = _LIMITS.fullmatch(head[5].decode("utf-8", "replace")) if head is not None else None
            if head is None or limits is None:
                raise Corrupt(DAMAGED)
            self._parts = list(head.groups()[:4]), list(limits.groups("")), head.end() + 4
        return self._parts

    @property
    def sent_ms(self) -> int:
        return int(self._split()[0][0])

    @property
    def kind(self) -> str:
        kind = self._kind
        if kind is None:
            # Without the patterns of `_split`: a consumer of several kinds asks for each message, and more than once.
            raw = self.raw
            start = raw.find(b"\t") + 1
            end = raw.find(b"\t", start)
            if not start or end < 0:
                raise Corrupt(DAMAGED)
            kind = self._kind = raw[start:end].decode("utf-8", "replace")
        return kind

    @property
    def priority(self) -> int:
        return int(self._split()[0][2])

    @property
    def size(self) -> int:
        return int(self._split()[0][3])

    @property
    def lease_ms(self) -> int | None:
        return int(self._split()[1][0] or 0) or None

    @property
    def expires_ms(self) -> int | None:
        """Milliseconds from sent_at after which the message is no longer delivered."""
        _, span, due, *_ = self._split()[1]
        return int(span) + max(0, int(due or 0) - self.sent_ms) if span else None

    @property
    def max_attempts(self) -> int | None:
        return int(self._split()[1][3] or 0) or None

    @property
    def unique_states(self) -> str:
        return self._split()[1][4]

    @property
    def unique(self) -> str | None:
        return self._split()[1][5] or None

    @property
    def batch(self) -> str | None:
        """The batch that the message is a part of: its home queue, a slash and its id."""
        return self._split()[1][6] or None

    @property
    def options(self) -> dict[str, Any]:
        if self._options is None:
            at = self._split()[2]
            text = self.raw[at + 2 : at + 2 + int.from_bytes(self.raw[at : at + 2])]
            try:
                options = json.loads(text) if text else {}
            except (ValueError, RecursionError):
                raise Corrupt(DAMAGED) from None
            if not isinstance(options, dict) or not isinstance(options.get("h") or {}, dict):
                raise Corrupt(DAMAGED)
            self._options = options
        return self._options

    @property
    def headers(self) -> dict[str, Any]:
        return dict(self.options.get("h") or {})

    @property
    def content_type(self) -> str:
        return str(self.options.get("c") or "application/json")

    @property
    def retry(self) -> RetryPolicy | None:
        text = self.options.get("r")
        try:
            return RetryPolicy.parse(str(text)) if text else None
        except InvalidInput:
            raise Corrupt(DAMAGED) from None

    @property
    def timeout_ms(self) -> int | None:
        """Milliseconds that a handler may take, if the message was sent with a timeout."""
        raw = self.raw
        at = raw.find(b"\n", raw.find(b"\n", raw.find(b"\t")) + 1) + 5
        if raw[at : at + 2] == b"\0\0":  # asked for each message that a consumer handles, and most have no options
            return None
        span = self.options.get("t")
        if span is not None and (type(span) is not int or span < 1):
            raise Corrupt(DAMAGED)
        return span

    @property
    def body(self) -> bytes:
        """The payload's bytes as they were sent."""
        at = self._split()[2]
        return self.raw[at + 2 + int.from_bytes(self.raw[at : at + 2]) :]

    @property
    def payload(self) -> Any:
        if self._payload is _UNREAD:
            if not self.whole:
                raise InvalidInput("a page of a list has only the start of this payload: read the message by its id")
            raw = self.raw
            at = raw.find(b"\n", raw.find(b"\n", raw.find(b"\t")) + 1) + 5
            if raw[at : at + 2] == b"\0\0":
                body, reading = raw[at + 2 :], ""
            else:
                body, reading = self.body, self.options.get("e", "")
            try:
                if reading == "bytes":
                    self._payload = body
                elif reading == "wide":
                    self._payload = json.loads(body)
                else:
                    self._payload = orjson.loads(body)
            except (ValueError, RecursionError) as error:
                raise Corrupt(f"the stored payload is damaged: {error}") from None
        return self._payload


class Damaged(Stored):
    """A stored form that cannot be read. It has empty facts and shows its bytes, so that a list can still be read."""

    def _split(self) -> tuple[list[bytes], list[str], int]:
        return [b"0", b"", b"0", b"%d" % len(self.raw)], [""] * 7, 0

    @property
    def kind(self) -> str:
        return ""

    @property
    def options(self) -> dict[str, Any]:
        return {}

    @property
    def timeout_ms(self) -> int | None:
        return None

    @property
    def body(self) -> bytes:
        return self.raw

    @property
    def payload(self) -> Any:
        raise Corrupt(DAMAGED)


def readable(raw: bytes) -> Stored:
    """Returns a stored form for display: `Damaged` if facts, limits or options cannot be read."""
    held = Stored(raw)
    try:
        held.options  # noqa: B018 (reads all three)
        held.retry  # noqa: B018
        held.timeout_ms  # noqa: B018
    except Corrupt:
        return Damaged(raw)
    return held

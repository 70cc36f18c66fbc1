"""How a message lies in Redis: one string with what the scripts need in front and the payload behind.

    sent_at (13 digits, put in front by the server) · CRC-32 of the rest (4 bytes)
    · length (1) and text of the facts   kind ⇥ priority ⇥ payload bytes
    · length (1) and text of the limits  lease_ms ⇥ max_attempts ⇥ unique states ⇥ unique key, empty for most
    · length (2) and JSON of the options (encoding, content type, headers, retry policy), empty for most
    · payload

The facts and limits are text because the scripts paste them into the journal; the options are read by
clients alone. A bit flipped on disk fails the checksum and the message is buried as Corrupt.
"""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

import orjson

from restante.core.errors import Corrupt, InvalidInput, InvalidPayload
from restante.core.names import valid_name
from restante.core.retry import RetryPolicy

_STRICT = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS
_OPTIONS_LENGTH = struct.Struct(">H")
_CHECKSUM = struct.Struct(">I")
#: Bytes; headers and options together. Larger ones belong into the payload.
MAX_OPTIONS = 65535
#: Characters of a unique key: it lies beside the limits, whose length is one byte.
MAX_UNIQUE = 200


def encode_json(value: Any, what: str = "payload") -> tuple[bytes, str]:
    """The JSON text and how it must be read back: "" by the fast decoder, "wide" where numbers exceed 64 bits."""
    try:
        text = orjson.dumps(value, None, _STRICT)
    except TypeError as error:
        if "64-bit" not in str(error):
            raise InvalidPayload(
                f"{what} cannot be sent as JSON: {error}; send JSON values with string keys, or bytes"
            ) from None
        return _encode_wide(value, what), "wide"
    # The fast encoder turns NaN and infinity into null; a look at the slow one tells whether it did.
    if b"null" in text:
        _encode_wide(value, what)
    return text, ""


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
    max_attempts: int | None = None,
    retry: RetryPolicy | None = None,
    unique: str | None = None,
    unique_states: str = "",
) -> tuple[bytes, int]:
    """The stored form without sent_at, and the payload's size in bytes."""
    options: dict[str, Any] | None = None
    if isinstance(payload, bytes | bytearray | memoryview):
        body = bytes(payload)
        options = {"e": "bytes", "c": content_type or "application/octet-stream"}
    else:
        body, reading = encode_json(payload)
        if reading or content_type:
            options = {"e": reading, "c": content_type or "application/json"}
    if kind:
        valid_name(kind, "kind")
    if headers or retry is not None:
        options = options or {}
        if headers:
            if not isinstance(headers, dict):
                raise InvalidInput(f"headers must be a dict, not {type(headers).__name__}")
            options["h"] = headers
        if retry is not None:
            options["r"] = retry.text()
    extra = b"" if options is None else encode_json(options, "headers")[0]
    if len(extra) > MAX_OPTIONS:
        raise InvalidInput(f"headers take {len(extra)} bytes, more than {MAX_OPTIONS}: move them into the payload")
    limits = b""
    if lease_ms is not None or max_attempts is not None or unique is not None:
        if unique is not None and (not unique or len(unique.encode()) > MAX_UNIQUE or "\t" in unique or "\n" in unique):
            raise InvalidInput(f"unique must be 1 to {MAX_UNIQUE} bytes without tabs or line ends, not {unique!r}")
        limits = f"{lease_ms or ''}\t{max_attempts or ''}\t{unique_states}\t{unique or ''}".encode()
    facts = b"%b\t%d\t%d" % (kind.encode(), priority, len(body))
    rest = b"%c%b%c%b%b%b%b" % (
        len(facts), facts, len(limits), limits, _OPTIONS_LENGTH.pack(len(extra)), extra, body,
    )  # fmt: skip
    return _CHECKSUM.pack(zlib.crc32(rest)) + rest, len(body)


class Stored:
    """The stored form read back, each part when it is asked for."""

    __slots__ = ("_facts", "_limits", "_options", "_payload", "raw", "whole")

    def __init__(self, raw: bytes, *, whole: bool = True) -> None:
        self.raw = raw
        #: False for a page's preview, whose payload is cut and cannot be checked.
        self.whole = whole
        self._facts: list[bytes] | None = None
        self._limits: list[str] | None = None
        self._options: dict[str, Any] | None = None
        self._payload: Any = self

    def check(self) -> bool:
        """Whether the bytes are those that were sent."""
        raw = self.raw
        return len(raw) > 20 and zlib.crc32(memoryview(raw)[17:]) == int.from_bytes(raw[13:17])

    @property
    def sent_ms(self) -> int:
        return int(self.raw[:13])

    def _split_facts(self) -> list[bytes]:
        if self._facts is None:
            self._facts = self.raw[18 : 18 + self.raw[17]].split(b"\t")
        return self._facts

    @property
    def kind(self) -> str:
        return self._split_facts()[0].decode()

    @property
    def priority(self) -> int:
        return int(self._split_facts()[1])

    @property
    def size(self) -> int:
        return int(self._split_facts()[2])

    def _split_limits(self) -> list[str]:
        if self._limits is None:
            start = 18 + self.raw[17]
            length = self.raw[start]
            text = self.raw[start + 1 : start + 1 + length].decode()
            self._limits = text.split("\t") if text else ["", "", "", ""]
        return self._limits

    @property
    def lease_ms(self) -> int | None:
        return int(self._split_limits()[0] or 0) or None

    @property
    def max_attempts(self) -> int | None:
        return int(self._split_limits()[1] or 0) or None

    @property
    def unique_states(self) -> str:
        return self._split_limits()[2]

    @property
    def unique(self) -> str | None:
        return self._split_limits()[3] or None

    def _body_start(self) -> int:
        raw = self.raw
        at = 18 + raw[17]
        at += 1 + raw[at]
        return at + 2 + int.from_bytes(raw[at : at + 2])

    @property
    def options(self) -> dict[str, Any]:
        if self._options is None:
            at = 18 + self.raw[17]
            at += 1 + self.raw[at]
            text = self.raw[at + 2 : self._body_start()]
            self._options = json.loads(text) if text else {}
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
        return RetryPolicy.parse(text) if text else None

    @property
    def body(self) -> bytes:
        """The payload's bytes as they were sent."""
        return self.raw[self._body_start() :]

    @property
    def payload(self) -> Any:
        if self._payload is self:
            body, reading = self.body, self.options.get("e", "")
            try:
                if reading == "bytes":
                    self._payload = body
                elif reading == "wide":
                    self._payload = json.loads(body)
                else:
                    self._payload = orjson.loads(body)
            except ValueError as error:
                raise Corrupt(f"the payload is not what was sent: {error}") from None
        return self._payload

"""Models of request bodies.

Instants are integer milliseconds, durations are seconds. Unknown fields are rejected, so that a typing error does not
silently become a default.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from restante.core.batch import KEEP, BatchOptions
from restante.core.errors import InvalidInput, InvalidPayload
from restante.core.message import Draft, State
from restante.core.operations import MAX_BATCH, MAX_STEP
from restante.core.retry import LONGEST_DELAY, RetryPolicy
from restante.core.settings import DURATIONS, JOURNAL_LEVELS

#: Seconds a receive may wait. Longer polls run into the timeouts of proxies.
MAX_WAIT = 60.0
#: The rule of `restante.core.names` as a pattern for OpenAPI.
NAME = r"^[A-Za-z0-9._:@/+][A-Za-z0-9._:@/+-]{0,199}$"
#: Names of batches: the home queue, a slash and an ID.
BATCH_NAME = f"{NAME[:-1]}/{NAME[1:].replace('/', '')}"


def _whole(value: Any) -> Any:
    """JSON has one number type, so 7.0 is accepted as 7."""
    return int(value) if type(value) is float and value.is_integer() else value


Name = Annotated[str, Field(pattern=NAME, examples=["orders"])]
#: A kind may be empty: most messages have none.
Kind = Annotated[str, Field(pattern=NAME.replace("^", "^(").replace("$", ")?$"), examples=["order.placed"])]
Seconds = Annotated[float, Field(ge=0, le=LONGEST_DELAY, allow_inf_nan=False)]
Lease = Annotated[float, Field(ge=0.001, le=LONGEST_DELAY, allow_inf_nan=False)]
Priority = Annotated[int, Field(ge=0, le=255), BeforeValidator(_whole)]
Attempts = Annotated[int, Field(ge=1, le=65535), BeforeValidator(_whole)]
_SPAN = r"([0-9]{1,8}|[12][0-9]{8})(\.[0-9]{1,17})?"
_FACTOR = r"([1-9][0-9]{0,2}(\.[0-9]{1,17})?|1000(\.0)?)"
_SHARE = r"(0(\.[0-9]{1,17})?|1(\.0)?)"
#: The format of `RetryPolicy.text()` as a pattern for OpenAPI.
POLICY = rf"^(exponential:{_SPAN}:{_FACTOR}:{_SPAN}:{_SHARE}|fixed:({_SPAN}(,{_SPAN}){{0,99}})?)$"
Policy = Annotated[
    str, Field(max_length=2000, pattern=POLICY, examples=["exponential:1.0:2.0:600.0:0.1", "fixed:1.0,5.0"])
]
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
Durability = Annotated[str, Field(pattern=r"^(memory|disk|replica:[1-9][0-9]?|replica:100)$", examples=["memory"])]
Pid = Annotated[int, Field(ge=0, le=2**31, description="Process ID, for the registry."), BeforeValidator(_whole)]
Length = Annotated[int, Field(ge=1, le=2**40), BeforeValidator(_whole)]
Bytes = Annotated[int, Field(ge=1, le=512 * 1024 * 1024), BeforeValidator(_whole)]
Leases = Annotated[int, Field(ge=1, le=2**31), BeforeValidator(_whole)]
Results = Annotated[int, Field(ge=0, le=10_000_000), BeforeValidator(_whole)]
Lines = Annotated[int, Field(ge=1000, le=2**40), BeforeValidator(_whole)]
#: JSON holds an enumeration's member as text, which strict mode would reject.
AnyState = Annotated[State, Field(strict=False)]
Count = Annotated[int, Field(ge=1, le=MAX_BATCH), BeforeValidator(_whole)]
Ids = Annotated[list[Name], Field(min_length=1, max_length=MAX_BATCH)]


class Strict(BaseModel):
    """A request body: unknown fields and wrong types are rejected."""

    model_config = ConfigDict(extra="forbid", strict=True)


_ONE_PAYLOAD: dict[str, Any] = {
    "oneOf": [
        {"required": ["payload"]},
        {"required": ["payload_base64"], "properties": {"payload_base64": {"type": "string"}}},
    ],
    "not": {
        "required": ["due_at", "delay_seconds"],
        "properties": {"due_at": {"type": "integer"}, "delay_seconds": {"exclusiveMinimum": 0}},
    },
}


class SendOne(Strict):
    """One message. Give `payload` (any JSON value) or `payload_base64` (bytes), `due_at` or `delay_seconds`."""

    model_config = ConfigDict(json_schema_extra=_ONE_PAYLOAD)

    payload: Any = None
    payload_base64: str | None = Field(None, pattern=BASE64)
    content_type: str | None = Field(None, min_length=1, max_length=200)
    id: Name | None = None
    kind: Kind | None = None
    priority: Priority = 0
    delay_seconds: Seconds = 0
    due_at: Annotated[int, Field(ge=0, le=253_402_300_799_999), BeforeValidator(_whole)] | None = None
    headers: dict[str, Any] | None = None
    lease_seconds: Lease | None = None
    max_attempts: Attempts | None = None
    retry: Policy | None = None
    unique: str | None = Field(None, min_length=1, max_length=200, pattern=r"^[^\t\n]*$")
    unique_states: list[AnyState] | None = Field(None, max_length=6)
    expires_seconds: Seconds | None = None
    timeout_seconds: Lease | None = None

    @model_validator(mode="after")
    def _one_payload(self) -> SendOne:
        if ("payload" in self.model_fields_set) == (self.payload_base64 is not None):
            raise ValueError("give payload or payload_base64, and not both")
        return self

    def draft(self, id: str | None = None) -> Draft:
        """The message as a `Draft`. `id` is used if the body has none."""
        content: Any = self.payload
        if self.payload_base64 is not None:
            try:
                content = base64.b64decode(self.payload_base64, validate=True)
            except (binascii.Error, ValueError) as error:
                raise InvalidPayload(f"payload_base64 is not base64: {error}") from None
        return Draft(
            content,
            self.priority,
            self.delay_seconds,
            from_ms(self.due_at),
            self.id or id,
            self.kind or "",
            self.headers,
            self.content_type,
            self.lease_seconds,
            self.max_attempts,
            RetryPolicy.parse(self.retry) if self.retry is not None else None,
            self.unique,
            frozenset(self.unique_states) if self.unique_states else None,
            self.expires_seconds,
            self.timeout_seconds,
        )


class SendMany(Strict):
    """A batch. All messages are stored, or none."""

    messages: list[SendOne] = Field(min_length=1, max_length=MAX_BATCH)
    durability: Durability | None = None


class BatchMessage(SendOne):
    """A message of a batch, with its queue. The server makes its ID."""

    queue: Name


class SendBatch(Strict):
    """A batch: messages of any queues, and those that are sent at its end and at its first dead message."""

    home: Name
    messages: list[BatchMessage] = Field(max_length=MAX_BATCH)
    on_complete: SendOne | None = None
    on_dead: SendOne | None = None
    id: Annotated[str, Field(pattern=NAME.replace("/", ""))] | None = None
    title: str = Field("", max_length=200)
    parent: Annotated[str, Field(pattern=BATCH_NAME, examples=["reports/01HZY5Q3"])] | None = None
    keep_seconds: Annotated[float, Field(ge=1, le=LONGEST_DELAY, allow_inf_nan=False)] = KEEP

    def options(self) -> BatchOptions:
        """What `client.batch` takes."""
        ends = {"on_complete": self.on_complete, "on_dead": self.on_dead}
        drafts = {name: one.draft() for name, one in ends.items() if one is not None}
        made: BatchOptions = {"id": self.id, "title": self.title, "parent": self.parent, "keep": self.keep_seconds}
        return {**made, **drafts}  # type: ignore[typeddict-item]  # the names are those above


class SendSingle(SendOne):
    durability: Durability | None = None


def _which(body: Any) -> str:
    return "many" if isinstance(body, dict) and "messages" in body else "one"


Sending = Annotated[
    Annotated[SendSingle, Tag("one")] | Annotated[SendMany, Tag("many")],
    Discriminator(_which),
]


class Ticket(Strict):
    """A leased message: its ID and lease token."""

    id: Name
    lease_token: str = Field(max_length=100_000, examples=["41-9f02c1aa"])


class Receive(Strict):
    """What to receive. `acks` are settled first, in the same call."""

    count: Count = 1
    wait_seconds: float = Field(0, ge=0, le=MAX_WAIT, allow_inf_nan=False)
    lease_seconds: Lease | None = None
    consumer: Name | None = Field(None, description="consumer name, shown in the registry and the journal")
    pid: Pid = 0
    acks: list[Ticket] = Field(default=[], max_length=MAX_BATCH)


class ReceiveAny(Strict):
    """Receives from the first queue that has messages."""

    queues: list[Name] = Field(min_length=1, max_length=100)
    count: Count = 1
    wait_seconds: float = Field(0, ge=0, le=MAX_WAIT, allow_inf_nan=False)
    lease_seconds: Lease | None = None
    consumer: Name | None = None
    pid: Pid = 0


class Failure(Strict):
    """Why the attempt failed. Dead letters are grouped by `error_class`."""

    error: str | None = Field(None, max_length=20_000)
    error_class: Annotated[str, Field(max_length=80, pattern=r"^[A-Za-z0-9._]*$")] | None = None


class Verdict(Strict):
    lease_token: str = Field(max_length=100_000)


class Ack(Verdict):
    result: Any = Field(None, description="What came out, kept with a done message if the queue has keep_done.")


class Note(Verdict):
    """How far the handler of a leased message is."""

    fraction: float = Field(ge=0, le=1, allow_inf_nan=False)
    step: str = Field("", max_length=MAX_STEP)


class Nack(Verdict, Failure):
    delay_seconds: Seconds | None = None
    retry: Policy | None = None


class Bury(Verdict, Failure):
    pass


class Release(Verdict):
    delay_seconds: Seconds = 0


class Extend(Verdict):
    lease_seconds: Lease | None = None


class Acks(Strict):
    messages: list[Ticket] = Field(min_length=1, max_length=MAX_BATCH)


class Nacks(Acks, Failure):
    delay_seconds: Seconds | None = None
    retry: Policy | None = None


class Buries(Acks, Failure):
    pass


class Releases(Acks):
    delay_seconds: Seconds = 0


class Extends(Acks):
    lease_seconds: Lease | None = None


class Empty(Strict):
    """An empty body."""


class Purge(Strict):
    states: list[Literal["scheduled", "ready", "retrying", "dead", "done"]] = Field(min_length=1, max_length=5)


class Some(Strict):
    ids: Ids


class Move(Some):
    to: Name


_IDS_OR_FILTER: dict[str, Any] = {
    "not": {
        "required": ["ids"],
        "properties": {"ids": {"type": "array"}},
        "anyOf": [{"required": [name], "properties": {name: {"type": "string"}}} for name in ("kind", "error_class")],
    }
}


class Replay(Strict):
    """The named messages, or all dead ones that match. `task` resumes an interrupted replay."""

    model_config = ConfigDict(json_schema_extra=_IDS_OR_FILTER)

    ids: list[Name] | None = Field(None, min_length=1, max_length=MAX_BATCH)
    kind: Kind | None = None
    error_class: str | None = Field(None, max_length=80)
    rate: float | None = Field(None, ge=0.01, le=1e6, allow_inf_nan=False)
    dry_run: bool = False
    task: Name | None = None


class ReplayEvents(Strict):
    """The named events, or all dead events of the service that match."""

    ids: list[Name] | None = Field(None, min_length=1, max_length=MAX_BATCH)
    subscription: Name | None = None
    error_class: str | None = Field(None, max_length=80)
    dry_run: bool = False


class Edit(Strict):
    """The fields to change. Fields that are not named stay."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1})

    payload: Any = None
    priority: Priority | None = None
    headers: dict[str, Any] | None = None
    delay_seconds: Seconds | None = None


class Configure(Strict):
    """Settings of a queue. Null restores the default; settings that are not named stay."""

    lease_seconds: Lease | None = None
    max_attempts: Attempts | None = None
    retry: Policy | None = None
    max_length: Length | None = None
    max_dead: Length | None = None
    max_payload_bytes: Bytes | None = None
    max_leased: Leases | None = None
    rate: float | None = Field(None, ge=0.001, le=1e6, allow_inf_nan=False)
    keep_done: Results | None = None
    dedup_seconds: Seconds | None = None
    timeout_seconds: Lease | None = None
    soft_timeout_seconds: Lease | None = None
    durability: Durability | None = None
    journal: str | None = Field(None, pattern=f"^({'|'.join(JOURNAL_LEVELS)})$")
    journal_keep: Lines | None = None
    journal_cap: Lines | None = None

    def options(self) -> dict[str, Any]:
        """The settings as keywords of `Admin.configure`."""
        options: dict[str, Any] = {}
        for name in self.model_fields_set:
            value = getattr(self, name)
            if name == "retry" and value is not None:
                value = RetryPolicy.parse(value)
            options[RENAMED.get(name, name)] = value
        return options


class PutSchedule(Strict):
    """A schedule. Give `cron` or `every_seconds`, and `payload` (any JSON value) or `payload_base64` (bytes)."""

    cron: str | None = Field(None, max_length=500, examples=["0 3 * * *"])
    every_seconds: float | None = Field(None, ge=0.1, le=LONGEST_DELAY, allow_inf_nan=False)
    tz: str | None = Field(None, max_length=100, examples=["Europe/Berlin"])
    start_at: Annotated[int, Field(ge=0, le=253_402_300_799_000), BeforeValidator(_whole)] | None = None
    end_at: Annotated[int, Field(ge=0, le=253_402_300_799_000), BeforeValidator(_whole)] | None = None
    jitter_seconds: Seconds = 0
    missed: Literal["once", "skip", "all"] = "once"
    overlap: bool = True
    payload: Any = None
    payload_base64: str | None = Field(None, pattern=BASE64)
    content_type: str | None = Field(None, min_length=1, max_length=200)
    kind: Kind | None = None
    priority: Priority = 0
    headers: dict[str, Any] | None = None
    lease_seconds: Lease | None = None
    max_attempts: Attempts | None = None
    retry: Policy | None = None
    expires_seconds: Seconds | None = None
    timeout_seconds: Lease | None = None

    def options(self) -> dict[str, Any]:
        """The schedule as keywords of `Admin.add_schedule`."""
        content: Any = self.payload
        if self.payload_base64 is not None:
            if "payload" in self.model_fields_set:
                raise InvalidInput("give payload or payload_base64, and not both")
            content = base64.b64decode(self.payload_base64)
        return {
            "cron": self.cron,
            "every": self.every_seconds,
            "tz": self.tz,
            "start": from_ms(self.start_at),
            "end": from_ms(self.end_at),
            "jitter": self.jitter_seconds,
            "missed": self.missed,
            "overlap": self.overlap,
            "payload": content,
            "content_type": self.content_type,
            "kind": self.kind or "",
            "priority": self.priority,
            "headers": self.headers,
            "lease": self.lease_seconds,
            "max_attempts": self.max_attempts,
            "retry": check_policy(self.retry),
            "expires": self.expires_seconds,
            "timeout": self.timeout_seconds,
        }


#: The rules of `restante.rsmq.keys` and of RSMQ's IDs as patterns for OpenAPI.
RSMQ_NAMESPACE = r"^[A-Za-z0-9._:@/+{}-]{1,200}$"
RSMQ_QUEUE = r"^[A-Za-z0-9._-]{1,160}$"
RSMQ_ID = r"^[A-Za-z0-9:]{32}$"
RsmqIds = Annotated[list[Annotated[str, Field(pattern=RSMQ_ID)]], Field(min_length=1, max_length=MAX_BATCH)]


class RsmqSome(Strict):
    """Messages of an RSMQ queue."""

    ids: RsmqIds


class RsmqMove(Strict):
    """Messages of an RSMQ queue and their target: a native queue, or with `rsmq` another RSMQ queue."""

    ids: RsmqIds
    to: Name
    rsmq: bool = False


class SignIn(Strict):
    token: str = Field(min_length=1, max_length=200)


#: HTTP's name of a setting → the core's.
RENAMED = {**{f"{name}_seconds": name for name in DURATIONS}, "max_payload_bytes": "max_payload"}


def from_ms(value: int | None) -> datetime | None:
    """Converts an instant from HTTP."""
    return None if value is None else datetime.fromtimestamp(value / 1000, UTC)


def check_policy(text: str | None) -> RetryPolicy | None:
    """Parses a retry policy from HTTP."""
    return None if text is None else RetryPolicy.parse(text)


def changes_of(edit: Edit) -> dict[str, Any]:
    """The edit as keywords of `Admin.edit`."""
    if not edit.model_fields_set:
        raise InvalidInput("name at least one of payload, priority, headers and delay_seconds")
    changes: dict[str, Any] = {}
    if "payload" in edit.model_fields_set:
        changes["payload"] = edit.payload
    for theirs, ours in (("priority", "priority"), ("headers", "headers"), ("delay_seconds", "delay")):
        value = getattr(edit, theirs)
        if value is not None:
            changes[ours] = value
    return changes

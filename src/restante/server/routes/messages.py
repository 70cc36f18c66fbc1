"""Routes for messages: send, receive, the verdicts ack, nack, bury, release and extend, progress and status.

A receive that waits holds its own Redis connection and no thread. If its client disconnects meanwhile, or the token
is revoked, messages received for it are released without counting the attempt.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import orjson
from fastapi import Header, Query, Request

from restante.core.attempts import Status
from restante.core.handle import FIRST_PAUSE, GROWTH, LONGEST_PAUSE
from restante.core.inspector import SHOW, parse_message
from restante.core.keys import idempotency_key
from restante.core.message import Draft, Message, MessageId, RemoteError, State
from restante.core.operations import Received, Ticket, lease_lost
from restante.core.queue import AsyncQueue, Flow, Wait, receiving, run_flow_async
from restante.core.scripts import ScriptCall
from restante.core.trace import TRACE
from restante.server import requests, responses
from restante.server.access import Caller, Role
from restante.server.routing import MessageName, QueueName, Reader, Sender, StateDep, Taker, json_route, router
from restante.server.serializers import received_out, status_out
from restante.server.state import MAX_WAITING, Json, Refused, ServerState

#: Seconds for which an Idempotency-Key is remembered after its send. A retry that comes later stores a second message.
REMEMBERED = 86400
_LETTERS = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
#: Characters of a tracestate, as many as the W3C asks for at least. A longer one is dropped with its trace.
LONGEST_TRACE = 512

api = router("messages")


# -- send ------------------------------------------------------------------------------------------------------------


@json_route(
    api.post,
    "/queues/{queue:name}/messages",
    responses.Sent | responses.SentMany,
    status_code=201,
    summary="Send one message or a batch",
)
async def send(
    state: StateDep,
    caller: Sender,
    request: Request,
    queue: QueueName,
    body: requests.Sending,
    idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
) -> Json:
    """201 means stored. Repeating a call with the same `Idempotency-Key` stores nothing more."""
    many = isinstance(body, requests.SendMany)
    items: Sequence[requests.SendOne] = body.messages if isinstance(body, requests.SendMany) else [body]
    to = state.queue(queue, _consumer(state, caller))
    trace = _trace_of(request)
    if idempotency_key is None:
        ids = await _send(to, [_traced(item.draft(), trace) for item in items], body.durability)
        return _sent(ids, many)
    return await _send_once(state, to, idempotency_key, items, many, body.durability, trace)


def _trace_of(request: Request) -> dict[str, str]:
    """The trace of a request that has one, for the headers of the messages that it sends."""
    found = {name: value for name in TRACE if (value := request.headers.get(name))}
    valid = _TRACEPARENT.fullmatch(found.get("traceparent", "")) and len(found.get("tracestate", "")) <= LONGEST_TRACE
    return found if valid else {}


def _traced(draft: Draft, trace: Mapping[str, str]) -> Draft:
    """The draft with the request's trace, unless the sender gave the message one of its own."""
    if not trace or "traceparent" in (draft.headers or {}):
        return draft
    return replace(draft, headers={**(draft.headers or {}), **trace})


async def _send(to: AsyncQueue, drafts: list[Draft], durability: str | None) -> list[MessageId]:
    return await to.send_many(drafts, durability=durability)


async def _send_once(
    state: ServerState,
    to: AsyncQueue,
    key: str,
    items: Sequence[requests.SendOne],
    many: bool,
    durability: str | None,
    trace: Mapping[str, str],
) -> Json:
    """Derives the IDs from the key, so a repeated send finds what the first stored; then remembers the response."""
    digest = hashlib.sha256(f"{to.name}\n{key}".encode()).digest()
    body_digest = hashlib.sha256(repr([item.model_dump() for item in items]).encode()).hexdigest()
    place = idempotency_key(to.name, digest.hex())
    before = await state.async_client.connection.command("GET", place, key=place)
    if before is not None:
        kept = orjson.loads(before)
        if kept["said"] != body_digest:
            raise Refused(
                409, "KeyUsed", "this Idempotency-Key was used with another body", "use a new key for each new send"
            )
        return _sent([MessageId.of_earlier(id) for id in kept["ids"]], many)
    drafts = [_traced(item.draft(_id_from(digest, number)), trace) for number, item in enumerate(items)]
    ids = await _send(to, drafts, durability)
    kept_text = orjson.dumps({"said": body_digest, "ids": ids}, option=orjson.OPT_PASSTHROUGH_SUBCLASS, default=str)
    await state.async_client.connection.command("SET", place, kept_text, "EX", REMEMBERED, key=place)
    return _sent(ids, many)


def _id_from(digest: bytes, number: int) -> str:
    """The message ID for this key and position in the batch."""
    value = int.from_bytes(hashlib.sha256(digest + number.to_bytes(4)).digest()[:16])
    return "".join(_LETTERS[value >> shift & 31] for shift in range(125, -1, -5))


def _sent(ids: Sequence[MessageId], many: bool) -> Json:
    sent = [{"id": str(id), "stored": id.stored} for id in ids]
    return Json({"messages": sent} if many else sent[0], 201)


# -- receive ---------------------------------------------------------------------------------------------------------


@json_route(
    api.post, "/queues/{queue:name}/receive", responses.Taken, summary="Receive messages, waiting for the first"
)
async def receive(state: StateDep, caller: Taker, request: Request, queue: QueueName, body: requests.Receive) -> Json:
    """Leases each message until `lease_expires_at`. Ack, nack, bury, release or extend it with its `lease_token`.

    `acks` are settled in the same call.
    """
    at = state.queue(queue, body.consumer or _consumer(state, caller, request), _host(request), body.pid)
    acks = [Ticket(ticket.id, ticket.lease_token) for ticket in body.acks]
    return await _take(state, request, [at], body, acks)


@json_route(api.post, "/receive", responses.Taken, summary="Receive messages from the first queue that has any")
async def receive_any(state: StateDep, caller: Taker, request: Request, body: requests.ReceiveAny) -> Json:
    """Queues are tried in the given order."""
    consumer = body.consumer or _consumer(state, caller, request)
    return await _take(
        state, request, [state.queue(name, consumer, _host(request), body.pid) for name in body.queues], body
    )


async def _take(
    state: ServerState,
    request: Request,
    queues: list[AsyncQueue],
    body: requests.Receive | requests.ReceiveAny,
    acks: Sequence[Ticket] = (),
) -> Json:
    for queue in queues:
        if not queue.ref.opened:
            await queue.ensure_open()
    by_name = {queue.name: queue for queue in queues}
    refs = [queue.ref for queue in queues]
    now = None
    wait = 0.0 if state.closing.is_set() else body.wait_seconds
    lost: list[str] = []
    flow = _collect_lost(receiving(refs, body.count, timeout=wait, lease=body.lease_seconds, acks=acks), lost)
    if not wait:
        got = await run_flow_async(state.async_client.connection, flow)
    else:
        got = await _wait(state, request, flow)
    messages = got.messages if got else []
    if got:
        now = got.now
    received = [received_out(message, by_name[message.queue].settings) for message in messages]
    return Json({"now": now or await state.now_ms(), "messages": received, "lost": lost})


def _collect_lost(flow: Flow[Received | None], lost: list[str]) -> Flow[Received | None]:
    """Runs the receive and adds the IDs of acks whose lease is lost to `lost`, even if it returns no message."""
    step = next(flow)
    try:
        while True:
            result = yield step
            if isinstance(result, Received):
                lost += result.lost
            step = flow.send(result)
    except StopIteration as end:
        received: Received | None = end.value
        return received


async def _wait(state: ServerState, request: Request, flow: Flow[Received | None]) -> Received | None:
    """Runs a receive that waits, until it has messages, the client disconnects, or the server closes.

    It interrupts only the wait, never a running call: messages taken by that call would stay leased to nobody.
    """
    if state.waiting >= MAX_WAITING:
        raise Refused(503, "Busy", f"{MAX_WAITING} receives are already waiting", "retry later, or with wait_seconds 0")
    state.waiting += 1
    connection = state.async_client.connection
    leaving = asyncio.ensure_future(_gone(request))
    closing = asyncio.ensure_future(state.closing.wait())
    try:
        step = next(flow)
        while True:
            if isinstance(step, Wait):
                sleeping = asyncio.ensure_future(connection.wait(step.markers, step.seconds))
                await asyncio.wait((sleeping, leaving, closing), return_when=asyncio.FIRST_COMPLETED)
                if not sleeping.done():
                    sleeping.cancel()
                    await asyncio.gather(sleeping, return_exceptions=True)
                    for marker in step.markers:
                        # The marker may just have been popped: put it back, so that another consumer wakes.
                        await connection.command("ZADD", marker, 0, 0, key=marker)
                    return None
                await sleeping
                step = flow.send(None)
            else:
                step = flow.send(await connection.run(step))
    except StopIteration as end:
        got: Received | None = end.value
        if got is None or not got.messages:
            return got
        may = await state.still_may(request, Role.CONSUME)
        if leaving.done() or not may:
            await got.messages[0].source.release_many(got.messages)
            return None
        return got
    finally:
        flow.close()
        state.waiting -= 1
        for task in (leaving, closing):
            task.cancel()


async def _gone(request: Request) -> None:
    """Returns when the client has disconnected."""
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            return


def _consumer(state: ServerState, caller: Caller, request: Request | None = None) -> str:
    """The consumer name of a caller that gives none."""
    if request is None or not caller.open:
        return f"http:{caller.name}"
    return f"http:{_host(request) or 'local'}"


def _host(request: Request) -> str:
    host = request.client.host if request.client else ""
    return "".join(ch for ch in host if ch.isalnum() or ch in ".:-")


# -- verdicts --------------------------------------------------------------------------------------------------------


def _error(body: requests.Failure) -> BaseException | str | None:
    if body.error_class:
        return RemoteError(body.error_class, body.error or "")
    return body.error


async def _tickets(state: ServerState, to: AsyncQueue, given: Sequence[requests.Ticket], *, look: bool) -> list[Ticket]:
    """The tickets of a verdict. `look` reads what the next delay or lease depends on from Redis."""
    tickets = [Ticket(ticket.id, ticket.lease_token) for ticket in given]
    if look:
        messages = await asyncio.gather(*(_show(state, to, ticket.id) for ticket in tickets))
        for ticket, message in zip(tickets, messages, strict=True):
            if message is not None:
                ticket.attempts, ticket.retry = message.attempts, message.retry
                ticket.lease_ms = message.lease_ms if message.state is State.LEASED else 0
    return tickets


async def _show(state: ServerState, to: AsyncQueue, id: str) -> Message | None:
    keys = to.ref.keys.group(SHOW.keys)
    reply = await state.async_client.connection.run(ScriptCall(SHOW, keys, [id], lambda reply: reply, to.name))
    _, message_state, score, stored, delivery, history = reply
    if not message_state:
        return None
    return parse_message(to.name, id, State(message_state.decode()), score, stored, delivery, history)


async def _opened(state: ServerState, name: str, caller: Caller) -> AsyncQueue:
    to = state.queue(await state.existing(name), _consumer(state, caller))
    if not to.ref.opened:
        await to.ensure_open()
    return to


async def _ack(state: ServerState, caller: Caller, queue: str, tickets: Sequence[requests.Ticket]) -> Json:
    to = await _opened(state, queue, caller)
    await to.ack_many(await _tickets(state, to, tickets, look=False))
    return Json({"settled": len(tickets)})


async def _nack(state: ServerState, caller: Caller, queue: str, tickets: Sequence[requests.Ticket], body: Any) -> Json:
    to = await _opened(state, queue, caller)
    held = await _tickets(state, to, tickets, look=body.delay_seconds is None)
    states = await to.nack_many(
        held, delay=body.delay_seconds, error=_error(body), retry=requests.check_policy(body.retry)
    )
    return Json({"states": states})


async def _bury(state: ServerState, caller: Caller, queue: str, tickets: Sequence[requests.Ticket], body: Any) -> Json:
    to = await _opened(state, queue, caller)
    await to.bury_many(await _tickets(state, to, tickets, look=False), error=_error(body))
    return Json({"settled": len(tickets)})


async def _release(
    state: ServerState, caller: Caller, queue: str, tickets: Sequence[requests.Ticket], body: Any
) -> Json:
    to = await _opened(state, queue, caller)
    await to.release_many(await _tickets(state, to, tickets, look=False), delay=body.delay_seconds)
    return Json({"settled": len(tickets)})


async def _extend(
    state: ServerState, caller: Caller, queue: str, tickets: Sequence[requests.Ticket], body: Any
) -> Json:
    to = await _opened(state, queue, caller)
    held = await _tickets(state, to, tickets, look=body.lease_seconds is None)
    lost = await to.extend_many(held, lease=body.lease_seconds)
    if lost and len(tickets) == 1:
        raise lease_lost(held[0])
    ends = [None if ticket.id in lost else ticket.expires_ms for ticket in held]
    cancelled = [ticket.id for ticket in held if ticket.cancelled]
    return Json({"lease_expires_at": ends, "lost": lost, "cancelled": cancelled})


def _one(id: str, body: requests.Verdict) -> list[requests.Ticket]:
    return [requests.Ticket(id=id, lease_token=body.lease_token)]


_MESSAGE = "/queues/{queue:name}/messages/{id:name}"


@json_route(api.post, f"{_MESSAGE}/ack", responses.Settled, summary="Ack a message")
async def ack(state: StateDep, caller: Taker, queue: QueueName, id: MessageName, body: requests.Ack) -> Json:
    """Removes the message, or keeps it as done with its `result` if the queue has `keep_done`."""
    if body.result is None:
        return await _ack(state, caller, queue, _one(id, body))
    to = await _opened(state, queue, caller)
    await to.ack_result(Ticket(id, body.lease_token), body.result)
    return Json({"settled": 1})


@json_route(api.post, f"{_MESSAGE}/progress", responses.Noted, summary="Note how far a handler is")
async def progress(state: StateDep, caller: Taker, queue: QueueName, id: MessageName, body: requests.Note) -> Json:
    """Shown as `progress` while the message is leased. The error of a 409 is `MessageCancelled` if it was cancelled."""
    to = await _opened(state, queue, caller)
    await to.progress(Ticket(id, body.lease_token), body.fraction, body.step)
    return Json({"noted": True})


@json_route(api.get, f"{_MESSAGE}/status", responses.StatusOut, summary="Follow a message until it has ended")
async def status(
    state: StateDep,
    caller: Reader,
    request: Request,
    queue: QueueName,
    id: MessageName,
    wait_seconds: Annotated[float, Query(ge=0, le=requests.MAX_WAIT, allow_inf_nan=False)] = 0,
) -> Json:
    """State, progress, result and last error, without the payload. Answers at once, or with `wait_seconds` when the
    message has ended: it is done, dead or gone.
    """
    to = await _opened(state, queue, caller)
    found = await to.status(id)
    if wait_seconds and not found.ended:
        found = await _ended(state, request, to, id, wait_seconds) or found
    return Json(status_out(queue, id, found))


async def _ended(state: ServerState, request: Request, to: AsyncQueue, id: str, seconds: float) -> Status | None:
    """Looks until the message has ended, the time is over, the client disconnects or the server closes."""
    if state.waiting >= MAX_WAITING:
        raise Refused(
            503, "Busy", f"{MAX_WAITING} requests are already waiting", "retry later, or without wait_seconds"
        )
    state.waiting += 1
    until, pause, found = time.monotonic() + seconds, FIRST_PAUSE, None
    leaving = asyncio.ensure_future(_gone(request))
    closing = asyncio.ensure_future(state.closing.wait())
    try:
        while (left := until - time.monotonic()) > 0:
            done, _ = await asyncio.wait(
                (leaving, closing), timeout=min(pause, left), return_when=asyncio.FIRST_COMPLETED
            )
            pause = min(pause * GROWTH, LONGEST_PAUSE)
            found = await to.status(id)
            if done or found.ended:
                break
        return found
    finally:
        state.waiting -= 1
        for task in (leaving, closing):
            task.cancel()


@json_route(api.post, f"{_MESSAGE}/nack", responses.Nacked, summary="Nack a message")
async def nack(state: StateDep, caller: Taker, queue: QueueName, id: MessageName, body: requests.Nack) -> Json:
    """Retries the message after `delay_seconds` or the retry policy's delay; after the last attempt it is dead."""
    return await _nack(state, caller, queue, _one(id, body), body)


@json_route(api.post, f"{_MESSAGE}/bury", responses.Settled, summary="Bury a message")
async def bury(state: StateDep, caller: Taker, queue: QueueName, id: MessageName, body: requests.Bury) -> Json:
    """Makes the message dead at once, without another attempt."""
    return await _bury(state, caller, queue, _one(id, body), body)


@json_route(api.post, f"{_MESSAGE}/release", responses.Settled, summary="Release a message")
async def release(state: StateDep, caller: Taker, queue: QueueName, id: MessageName, body: requests.Release) -> Json:
    """Returns the message to its old position without counting the attempt."""
    return await _release(state, caller, queue, _one(id, body), body)


@json_route(api.post, f"{_MESSAGE}/extend", responses.Extended, summary="Extend a lease")
async def extend(state: StateDep, caller: Taker, queue: QueueName, id: MessageName, body: requests.Extend) -> Json:
    """The new lease starts now and lasts `lease_seconds`, or as long as before."""
    return await _extend(state, caller, queue, _one(id, body), body)


@json_route(api.post, "/queues/{queue:name}/ack", responses.Settled, summary="Ack many messages")
async def ack_many(state: StateDep, caller: Taker, queue: QueueName, body: requests.Acks) -> Json:
    """A 409 lists the messages whose lease is lost; the others are acked."""
    return await _ack(state, caller, queue, body.messages)


@json_route(api.post, "/queues/{queue:name}/nack", responses.Nacked, summary="Nack many messages")
async def nack_many(state: StateDep, caller: Taker, queue: QueueName, body: requests.Nacks) -> Json:
    """A 409 lists the messages whose lease is lost; the others are nacked."""
    return await _nack(state, caller, queue, body.messages, body)


@json_route(api.post, "/queues/{queue:name}/bury", responses.Settled, summary="Bury many messages")
async def bury_many(state: StateDep, caller: Taker, queue: QueueName, body: requests.Buries) -> Json:
    """A 409 lists the messages whose lease is lost; the others are dead."""
    return await _bury(state, caller, queue, body.messages, body)


@json_route(api.post, "/queues/{queue:name}/release", responses.Settled, summary="Release many messages")
async def release_many(state: StateDep, caller: Taker, queue: QueueName, body: requests.Releases) -> Json:
    """A 409 lists the messages whose lease is lost; the others are released."""
    return await _release(state, caller, queue, body.messages, body)


@json_route(api.post, "/queues/{queue:name}/extend", responses.Extended, summary="Extend many leases")
async def extend_many(state: StateDep, caller: Taker, queue: QueueName, body: requests.Extends) -> Json:
    """Lists the lost leases. If the only message given has lost its lease, the response is a 409."""
    return await _extend(state, caller, queue, body.messages, body)

"""Faults planted in the RSMQ client, its scripts and its bridge, and in the two programs in front of it."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_CALLS = ("tests/rsmq/test_calls.py::TestMessages",)
_LIMITS = ("tests/rsmq/test_calls.py::TestLimits",)
_BATCHES = ("tests/rsmq/test_beyond.py::TestBatches",)
_MOVING = ("tests/rsmq/test_beyond.py::TestMoving", "tests/rsmq/test_beyond.py::TestDeadLetters")
_CONSUMING = ("tests/rsmq/test_beyond.py::TestConsuming",)
_AWAY = ("tests/rsmq/test_server_away.py",)
_LOST = ("tests/rsmq/test_faults.py::TestLostAnswers",)
_RESTART = ("tests/rsmq/test_faults.py::test_a_consumer_waits_for_a_server_that_was_away",)
_INTO = ("tests/rsmq/test_bridge.py::TestInto",)
_BACK = ("tests/rsmq/test_bridge.py::TestBack",)
_TAKING = ("tests/rsmq/test_bridge.py::TestTakingOver",)
_SLIPS = ("tests/rsmq/test_slips.py",)
_READING = ("tests/rsmq/test_reader.py::TestWhileOthersWork",)
_PYRSMQ = ("tests/rsmq/test_pyrsmq.py",)
_CTL = ("tests/rsmq/test_rsmqctl.py",)

FAULTS: Final[tuple[Fault, ...]] = (
    # -- consumers
    Fault(
        "rsmq",
        "the heartbeat ends at its first failure",
        "Heartbeat._beat",
        'log.warning("extend failed queue=%s id=%s error=%s", qname, id, error)',
        'log.warning("extend failed queue=%s id=%s error=%s", qname, id, error)\n            return None',
        _AWAY,
    ),
    Fault(
        "rsmq",
        "the heartbeat goes on after its handler has failed",
        "Heartbeat.during",
        "                self._work = None\n",
        "                pass\n",
        _SLIPS,
    ),
    Fault(
        "rsmq",
        "a delete that fails is given up, and the message is handled twice",
        "_Consumer._insist",
        "failures += 1",
        "return",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "the consumer takes a delete that failed for one that succeeded",
        "RsmqConsumer._perform",
        "            except Unavailable as error:\n                return error\n",
        "            except Unavailable:\n                return None\n",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "the asyncio consumer gives a delete up that fails",
        "AsyncRsmqConsumer._perform",
        "            except Unavailable as error:\n                return error\n",
        "            except Unavailable:\n                return None\n",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "a consumer ends when the server is away for a moment",
        "RsmqConsumer.run",
        "drive(self._server_away(error), perform)",
        "return",
        _RESTART,
    ),
    Fault(
        "rsmq",
        "a message whose handler failed is deleted",
        "_Consumer._work",
        "            self._count_failure(message, error)\n",
        "            self._count_failure(message, error)\n"
        "            yield from self._insist(partial(calls.delete_message, *place))\n",
        _CONSUMING,
    ),
    Fault(
        "rsmq",
        "retry_delay is ignored",
        "_Consumer._work",
        "if self.retry_delay is not None:",
        "if False:",
        _CONSUMING,
    ),
    Fault(
        "rsmq",
        "the asyncio consumer takes a failed handler for one that succeeded",
        "AsyncRsmqConsumer._perform",
        "            except Exception as error:\n                return error\n",
        "            except Exception:\n                return None\n",
        _CONSUMING,
    ),
    # -- calls
    Fault(
        "rsmq",
        "a change of visibility is ignored",
        "visibility.lua",
        "call('ZADD', due, clock()",
        "call('ZADD', due, 'NX', clock()",
        _CALLS,
    ),
    Fault(
        "rsmq",
        "a receive with a vt of its own hides for the queue's",
        "receive_message",
        '"" if vt is None else validation.seconds(vt, "vt")',
        '""',
        _CALLS,
    ),
    Fault(
        "rsmq", "receives are not counted", "receive.lua", "(tonumber(m[2]) or 0) + 1", "(tonumber(m[2]) or 1)", _CALLS
    ),
    Fault(
        "rsmq",
        "the time of the first receive is overwritten by later ones",
        "receive.lua",
        "if m[3] then",
        "if false then",
        _CALLS,
    ),
    Fault(
        "rsmq",
        "a popped message is not counted as received",
        "pop.lua",
        "call('HSET', messages, 'totalrecv', (tonumber(totalrecv) or 0) + 1)",
        "",
        _CALLS,
    ),
    Fault(
        "rsmq",
        "a deleted message leaves its counts behind",
        "delete.lua",
        "call('HDEL', messages, id, id .. ':rc', id .. ':fr')",
        "call('HDEL', messages, id)",
        _CALLS,
    ),
    Fault(
        "rsmq",
        "the delay of a send is ignored",
        "send_message",
        '"" if delay is None else validation.seconds(delay, "delay")',
        '""',
        _CALLS,
    ),
    Fault(
        "rsmq",
        "the queue's delay does not hold for a batch",
        "send_many.lua",
        "0 or seconds_of(queue_delay, vt, totalrecv)",
        "0 or 0",
        _BATCHES,
    ),
    Fault(
        "rsmq",
        "ids of one microsecond are equal",
        "_tail",
        "random.choices(_PAIRS, k=_HALF_A_TAIL)",
        "_PAIRS[:11]",
        _CALLS,
    ),
    Fault("rsmq", "a batch is received in a random order", "send_many.lua", "micros + #ids", "micros", _BATCHES),
    Fault(
        "rsmq",
        "a batch is stored although one of it is too long",
        "send_many.lua",
        "if tonumber(ARGV[i]) > maxsize then return 1 end",
        "if i == 4 and tonumber(ARGV[i]) > maxsize then return 1 end",
        _BATCHES,
    ),
    Fault(
        "rsmq",
        "sizes are counted in characters instead of UTF-16 units",
        "body",
        'size = len(message.encode("utf-16-le")) // 2',
        "size = len(message)",
        _LIMITS,
    ),
    Fault(
        "rsmq",
        "maxsize is not enforced",
        "send.lua",
        "tonumber(size) > maxsize",
        "tonumber(size) > maxsize + 1024",
        _LIMITS,
    ),
    Fault(
        "rsmq",
        "a missing queue is told as a message that is too long",
        "_refused",
        "if code == 0:",
        "if code == 1:",
        _LIMITS,
    ),
    Fault(
        "rsmq",
        "batches are not announced on the realtime channel",
        "send_many.lua",
        "if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end",
        "",
        _BATCHES,
    ),
    Fault(
        "rsmq",
        "a send whose answer was lost is made again and stored twice",
        "send_message",
        "SEND, place, args, parse, qname, once=_SENT_ONCE",
        "SEND, place, args, parse, qname",
        _LOST,
    ),
    Fault(
        "rsmq",
        "a pop whose answer was lost is made again and loses a message in silence",
        "pop_message",
        ", once=_POPPED_ONCE",
        "",
        _LOST,
    ),
    Fault(
        "rsmq",
        "a queue made by a call whose answer was lost is told to have been there before",
        "_created_again",
        "if in_doubt else create",
        "if False else create",
        _LOST,
    ),
    Fault(
        "rsmq",
        "a message without a body is passed over without a word",
        "_parse_many",
        'log.error("skipped queue=%s id=%r error=Corrupt reason=%r", qname, reply[place], "it has no body")',
        "pass",
        _SLIPS,
    ),
    Fault(
        "rsmq",
        "a message goes to the dead letters one receive too late",
        "receive_or_dead_letter.lua",
        "if count < max or not m[1] then",
        "if count <= max or not m[1] then",
        _MOVING,
    ),
    Fault(
        "rsmq",
        "a queue seems empty when many dead letters are in front",
        "receive_or_dead_letter",
        "        if type(got) is not list:\n            return got",
        "        return None if type(got) is list else got",
        _MOVING,
    ),
    Fault(
        "rsmq",
        "the call names the wrong queue when the target of a move is missing",
        "_counted",
        "qname if reply == -1 else target",
        "qname",
        _MOVING,
    ),
    Fault(
        "rsmq",
        "a move takes messages that consumers are at work on",
        "move.lua",
        "now, 'LIMIT'",
        "'+inf', 'LIMIT'",
        _MOVING,
    ),
    Fault(
        "rsmq",
        "a walk misses a message that was given back behind it",
        "_pages",
        'for start in (b"-inf", b"%d" % (begun - SLOWNESS_MS)):',
        'for start in (b"-inf",):',
        _READING,
    ),
    # -- the bridge
    Fault(
        "rsmq",
        "the bridge on a cluster deletes before it sends",
        "Bridge._forward_in_two_steps",
        """
        sent = self._queue.send(payload, id=message.id, headers={"rsmq_queue": self._keys.queue})
        self._rsmq.delete_message(self._keys.queue, message.id)
""",
        """
        self._rsmq.delete_message(self._keys.queue, message.id)
        sent = self._queue.send(payload, id=message.id, headers={"rsmq_queue": self._keys.queue})
""",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "an operator's move on a cluster deletes before it sends",
        "take_over",
        "        if apart:\n",
        "        if apart:\n            Rsmq(namespace=namespace, post=post).delete_message(queue, id)\n",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "the bridge deletes although the native queue refuses",
        "forward.lua",
        "local answer = send()\n",
        "redis.call('ZREM', due, id)\nlocal answer = send()\n",
        _INTO,
    ),
    Fault(
        "rsmq",
        "the bridge takes a message that somebody else has received meanwhile",
        "forward.lua",
        " or (found[2] or '0') ~= received",
        "",
        _INTO,
    ),
    Fault(
        "rsmq",
        "the bridge ends when the native queue is full",
        "Bridge.run",
        "                continue\n",
        "                return total\n",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "the bridge back leaves no marker, and a message whose ack was lost arrives twice",
        "bring.lua",
        "call('SET', marker, '1', 'EX', kept)\n",
        "",
        _BACK,
    ),
    Fault(
        "rsmq",
        "the bridge back gives a message a new id at every attempt",
        "id_of",
        'f"{message.queue}\\n{message.id}"',
        'f"{message.queue}\\n{message.lease_token}"',
        _BACK,
    ),
    Fault(
        "rsmq",
        "the bridge back acks a message that RSMQ cannot carry",
        "Bridge._refuse",
        "self._holder.bury(message, error=error)",
        "message.ack()",
        _BACK,
    ),
    Fault(
        "rsmq",
        "the bridge back keeps what it holds when its target is gone",
        "Bridge._bring",
        "self._holder.release(self._queue, held[place:])",
        "pass",
        _BACK,
    ),
    Fault(
        "rsmq",
        "the bridge back leaves acks that failed to their leases",
        "Bridge._bring",
        """
        self._ack()
        # Measured""",
        """
        # Measured""",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "the bridge back keeps the marker of a message that it has acked for a week",
        "Bridge._ack",
        'Command(("EXPIRE", key, transfer.SETTLED), key)',
        'Command(("EXISTS", key), key)',
        _BACK,
    ),
    Fault(
        "rsmq",
        "the bridge back announces nothing on the realtime channel",
        "bring.lua",
        "if channel ~= '' then call('PUBLISH', channel, call('ZCARD', due)) end",
        "",
        _AWAY,
    ),
    Fault(
        "rsmq",
        "an operator's move makes delayed messages ready at once",
        "take_over",
        "due_at = None if message.state is State.READY else",
        "due_at = None if True else",
        _TAKING,
    ),
    # -- PyRSMQ's classes and the program rsmqctl, which live in other rooms
    Fault(
        "compat",
        "defaults given to RedisSMQ do not reach its commands",
        "RedisSMQ._command",
        "kind(self, **defaults | given)",
        "kind(self, **given)",
        _PYRSMQ,
    ),
    Fault(
        "compat",
        "a message that the processor of RedisSMQConsumer declines is deleted",
        "RedisSMQConsumer._process",
        'raise _Declined("the processor returned a false value")',
        "return",
        _PYRSMQ,
    ),
    Fault(
        "cli",
        "rsmqctl ends with 0 after a failure",
        "_fail",
        "raise typer.Exit(Code.NOTHING)",
        "raise typer.Exit(Code.OK)",
        _CTL,
    ),
    Fault(
        "cli",
        "rsmqctl says nothing when it deletes a message that is not there",
        "delete_message",
        "if not deleted:",
        "if False:",
        _CTL,
    ),
)

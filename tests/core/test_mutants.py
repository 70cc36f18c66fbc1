"""Faults planted in the scripts, one at a time: the scenario must catch each, or it would not catch a real one."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from restante.core.scripts import Script
from tests.core.bench import Bench
from tests.core.paired import Disagreement, Pair
from tests.core.scenario import play
from tests.core.verbs import SCRIPTS, altered


@dataclass(frozen=True)
class Mutant:
    """Texts replaced in some scripts."""

    name: str
    verbs: str
    edits: tuple[tuple[str, str], ...]

    def plant(self) -> dict[str, Script]:
        made = dict(SCRIPTS)
        for verb in self.verbs.split():
            for old, new in self.edits:
                made[verb] = altered(made[verb], old, new)
        return made


def mutant(name: str, verbs: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(name, verbs, edits)


#: The verbs that ask for a token, and those after which a unique key may be free.
HOLDERS = "nack bury release extend"
MOVERS = "receive ack nack bury release replay delete purge"
HELD = "if d.token ~= token or d.expires <= now then return nil end"
#: The verbs that remember their verdict for a lease journal.
DECIDERS = "ack nack bury release"
KEEPS_PAYLOADS = "if bodies and level == 'payloads' then"
READY_SCORE = "(255 - priority) * SPAN + base + n"

MUTANTS = (
    # Fencing
    mutant("no token check", HOLDERS, (HELD, "if d.expires <= now then return nil end")),
    mutant("token check without expiry", HOLDERS, (HELD, "if d.token ~= token then return nil end")),
    mutant("ack without token check", "ack receive", ("if token == given and", "if token and")),
    mutant("ack without expiry check", "ack receive", (" and tonumber(expires) > now and", " and")),
    mutant(
        "bury before checking",
        "bury",
        (
            "local d = m.held(call('HGET', k.deliveries, id), token, now)",
            "local d = call('HGET', k.deliveries, id) and m.parse(call('HGET', k.deliveries, id))",
        ),
    ),
    mutant(
        "the same token for every lease", "receive", ("format('%d', base + count) .. '-' .. nonce", "'1-' .. nonce")
    ),
    mutant("an ended lease keeps its token", "nack", ("text)\n      d.token, d.expires = '', 0", "text)")),
    # Removals
    mutant(
        "acked stays leased",
        "ack receive",
        ("call('ZREM', k.leased, unpack(gone))\n    call('HDEL'", "call('HDEL'"),
    ),
    mutant("received stays ready", "receive", ("call('ZREMRANGEBYRANK', ready, '0', format('%d', took - 1))", "")),
    mutant("nacked stays leased", "nack", ("call('ZREM', k.leased, id)\n      m.hold_unique", "m.hold_unique")),
    mutant("promoted stays scheduled", "receive", ("call('ZREM', from, unpack(ids))", "")),
    mutant("replayed stays dead", "replay", ("call('ZREM', dead, id)", "")),
    mutant("received is removed and not leased", "receive", ("call('ZADD', leased, unpack(scored))", "")),
    mutant("purge leaves payloads", "purge", ("m.forget(messages, deliveries, history, ids)\nreturn", "return")),
    mutant("delete takes what is leased", "delete", ("if body and call('ZSCORE', leased, id) then", "if false then")),
    # Schedules
    mutant("fires what has changed", "tick", ("string.sub(record, 1, #before + 1) == before .. '\\n'", "true")),
    mutant("fires early", "tick", ("early = early or tonumber(ARGV[i + 1]) > now", "")),
    mutant("the tick stays due", "tick", ("call('HSET', schedules, name, record)\n  if due ==", "if due ==")),
    mutant(
        "the next tick is not noted",
        "tick",
        ("if due == '' then call('ZREM', ticks, name) else call('ZADD', ticks, due, name) end", ""),
    ),
    mutant(
        "an ended schedule ticks on", "tick", ("if due == '' then call('ZREM', ticks, name) else", "if due ~= '' then")
    ),
    mutant("fires beside a message that waits", "tick", ("unsettled(match(before, '^[^\\t]*')) and 'passed' or", "")),
    mutant("a leased message counts as settled", "tick", (" or call('ZSCORE', leased, id)", "")),
    mutant("a retrying message counts as settled", "tick", (" or call('ZSCORE', retrying, id)", "")),
    mutant("a scheduled message counts as settled", "tick", ("\n    or call('ZSCORE', scheduled, id)", "")),
    mutant(
        "messages of a changed schedule are sent", "tick", ("for i = #sends, place + 1, -1 do sends[i] = nil end", "")
    ),
    mutant("a tick takes an id that is there", "tick", ("{ '1' }, {}", "{ '0' }, {}")),
    mutant("a refused tick moves on", "tick", ("if type(stored) == 'table' and stored.err then return stored end", "")),
    mutant("looks ahead beyond what is asked for", "tick", ("now + ahead, 'LIMIT'", "'+inf', 'LIMIT'")),
    mutant("what comes soon hides what is due", "tick", ("if waiting == 0 and most > 0 then", "if most > 0 then")),
    mutant("always the first of many", "tick", ("chance % (waiting - most + 1) or 0", "0 or 0")),
    mutant(
        "a schedule stored over another's change",
        "schedule",
        ("~= before then return 0 end", "== '\t' then return 0 end"),
    ),
    mutant(
        "a removed schedule ticks on",
        "schedule",
        ("call('HDEL', schedules, name)\n  call('ZREM', ticks, name)", "call('HDEL', schedules, name)"),
    ),
    mutant("a removed schedule stays", "schedule", ("call('HDEL', schedules, name)", "")),
    mutant(
        "a paused schedule ticks on",
        "schedule",
        ("if due == '' then call('ZREM', ticks, name) else", "if due ~= '' then"),
    ),
    mutant(
        "a new schedule wakes nobody", "schedule", ("'^%d*(.*)$'))\n  call('ZADD', marker, '0', '0')", "'^%d*(.*)$'))")
    ),
    mutant("schedules are not counted", "schedule", ("call('HSET', queue, 'schedules', count)", "")),
    mutant(
        "the settings lose their version",
        "schedule",
        ("call('HSET', queue, 'settings', version .. match(settings or '', '^%d*(.*)$'))", ""),
    ),
    # Order
    mutant("priority ignored", "send", (READY_SCORE, "255 * SPAN + base + n")),
    mutant("priority turned round", "send", (READY_SCORE, "priority * SPAN + base + n")),
    mutant("first in, last out", "send", (READY_SCORE, "(256 - priority) * SPAN - base - n")),
    mutant("sequence ignored", "send", (READY_SCORE, "(255 - priority) * SPAN")),
    mutant(
        "release loses its place",
        "release",
        ("due or m.position(d.facts, d.sequence), id)", "due or m.position(d.facts, d.sequence + 1000), id)"),
    ),
    # Counting
    mutant("attempts not counted", "receive", ("'%d', d.attempts + 1), d.replays", "'%d', d.attempts), d.replays")),
    mutant(
        "one attempt too many",
        "receive nack",
        ("d.attempts >= m.allowed_attempts(", "d.attempts > m.allowed_attempts("),
    ),
    mutant("crashes never end", "receive", ("d.attempts >= m.allowed_attempts(", "false and m.allowed_attempts(")),
    mutant(
        "release counts an attempt",
        "release",
        ("d.token, d.expires, d.attempts = '', 0, d.attempts - 1", "d.token, d.expires = '', 0"),
    ),
    mutant(
        "replay keeps attempts",
        "replay",
        (
            "d.token, d.expires, d.attempts, d.sequence, d.replays = '', 0, 0,",
            "d.token, d.expires, d.attempts, d.sequence, d.replays = '', 0, d.attempts,",
        ),
    ),
    mutant("the message's own limit ignored", "receive nack", ("own ~= '' and own or default", "default")),
    mutant("errors forgotten", "bury", ("remember(k.history, id, d, now, event, class, text)", "")),
    # Time
    mutant(
        "promoted early",
        "receive",
        ("call('ZRANGEBYSCORE', from, '-inf', now,", "call('ZRANGEBYSCORE', from, '-inf', now + 1000,"),
        ("if due and due <= now then", "if due and due <= now + 1000 then"),
    ),
    mutant("never reclaimed", "receive", ("expired = reclaim(k, now, set.max_attempts)", "expired = 0")),
    mutant("the message's own lease ignored", "receive", ("if own then expires_at =", "if false then expires_at =")),
    mutant("a clock of its own", "receive", ("local t = redis.call('TIME')", "local t = { 2000000000, 0 }")),
    mutant("extend moves no index", "extend", ("call('ZADD', leased, expires_at, id)", "")),
    mutant("nack lowers no hint", "nack", ("if soonest then m.wake_by(marker, set[4], soonest, now) end", "")),
    mutant("receive compares with an old hint", "receive", ("  known_due = due\n", "")),
    mutant(
        "send wakes nobody", "send", ("  call('ZADD', marker, '0', '0')\nend\nif not careful", "end\nif not careful")
    ),
    mutant("replay wakes nobody", "replay", ("if moved > 0 then call('ZADD', marker, '0', '0') end", "")),
    mutant("more is ready and nobody is told", "receive", ("if took > 0 and (more or", "if took > 0 and (")),
    # Once only
    mutant("unique keys never freed", MOVERS, ("call('HDEL', unique, key)", "local _ = key")),
    mutant("unique keys never held", "send", ("call('HSETNX', unique, key, id)", "")),
    mutant("acked ids not remembered", "ack receive", ("call('HSET', acked, unpack(graves))", "")),
    mutant(
        "a repeated id stored again",
        "send",
        (
            "if seen[id] or call('HEXISTS', k.messages, id) == 1 "
            "or (age < 2 * window and call('HEXISTS', k.acked, id) == 1)\n"
            "    or (age < window and call('HEXISTS', k.acked_before, id) == 1) then",
            "if seen[id] then",
        ),
    ),
    mutant("acked ids forgotten half a window early", "send", ("age < 2 * window and", "age < window / 2 and")),
    mutant("a repeated id in one batch stored twice", "send", ("if seen[id] or call(", "if call(")),
    # Bookkeeping
    mutant(
        "extend writes no journal",
        "extend",
        ("write(m.advance('extended', #lines), lines, false)", "m.advance('extended', #lines)"),
    ),
    mutant(
        "the journal forgets a line",
        "send",
        ("write(base, lines, false, bodies)", "lines[n] = nil write(base, lines, false, bodies)"),
    ),
    mutant("a pause ignored", "receive", ("if set.pause ~= '' then return 0 end", "")),
    mutant("max_length ignored", "send", ("if length + n > max_length then", "if length + n > math.huge then")),
    mutant("max_leased ignored", "receive", ("if max_leased and n > 0 then", "if false then")),
    mutant("an edit loses the place", "edit", ("m.position(facts, sequence), id)", "m.position(facts, 0), id)")),
    # What the tests came to know later
    mutant(
        "a pause not counted",
        "configure",
        ("call('HINCRBY', queue, event, n)", "call('HINCRBY', queue, event, event == 'paused' and 0 or n)"),
    ),
    mutant("an edit calls what is done leased", "edit", ("token ~= '' and 'leased' or ''", "token and 'leased'")),
    mutant(
        "a second token passes in the shadow of the first",
        "ack receive",
        ("elseif not (seen[id] == given or", "elseif not (seen[id] or"),
    ),
    mutant(
        "acked ids age by a clock that goes back",
        "ack receive",
        ("call('HSET', queue, 'acked_since', now) -- the clock", "call('UNLINK', acked, acked_before) -- the clock"),
    ),
    mutant(
        "acked ids kept for one generation only",
        "ack receive",
        ("call('RENAME', acked, acked_before)", "call('UNLINK', acked)"),
    ),
    mutant(
        "a moved message forgets its time",
        "move",
        ("(name == 'scheduled' or name == 'retrying') and score", "name == 'scheduled' and score"),
    ),
    mutant(
        "a moved message keeps its number",
        "move",
        ("call('HSET', to.messages, id, fresh)", "call('HSET', to.messages, id, body)"),
    ),
    mutant("a moved message stays", "move", ("call('ZREM', places[state], id)", "")),
    mutant(
        "a moved message leaves its unique key",
        "move",
        ("m.hold_unique(unique, limits, id, 'g')\n    on(to)", "on(to)"),
    ),
    mutant(
        "a moved message takes no unique key", "move", ("m.hold_unique(to.unique, limits, id, due and 's' or 'r')", "")
    ),
    mutant(
        "move takes what is there",
        "move",
        ("if places[state] and call('HEXISTS', to.messages, id) == 1 then", "if false then"),
    ),
    mutant("move wakes nobody", "move", ("call('ZADD', to.marker, '0', '0')", "")),
    mutant(
        "move writes both lines by the level of one",
        "move",
        ("on(from)\n    write(", "queue, journal = from.queue, from.journal\n    write("),
    ),
    mutant("errors left behind by a move", "move", ("if lines then call('HSET', to.history, id, lines) end", "")),
    mutant("skipped lines leave a gap", "receive nack", ("local last = base - skip + n", "local last = base + n")),
    mutant("terminal keeps nothing", "ack", ("not (terminal and level == 'terminal')", "true")),
    mutant("terminal keeps everything", "send", ("not (terminal and level == 'terminal')", "level ~= 'terminal'")),
    mutant("off keeps what is terminal", "delete", ("not (terminal and level == 'terminal')", "not terminal")),
    mutant("the packed settings are old", "configure", ("call('HSET', queue, 'settings', version .. packed)", "")),
    mutant(
        "a promoted message's place is not kept", "receive", ("call('HSET', k.deliveries, ids[i], m.pack(d))\n", "\n")
    ),
    mutant("a delay shorter by a fraction", "send", ("now + part + due", "now + due")),
    mutant("a retry early by a fraction", "nack", ("(tonumber(delay) > 0 and part or 0)", "0")),
    mutant("a release early by a fraction", "release", ("if delay > 0 then delay = delay + part end", "")),
    mutant("an ended attempt leaves no mark", "receive", ("d.token, d.expires = '-', 0", "d.token, d.expires = '', 0")),
    mutant("a mark opens the lock", HOLDERS, (HELD, HELD.replace("<= now", "<= now and token ~= '-'"))),
    mutant("an idle look misses what is due", "receive", ("if not due and presence", "if presence")),
    # Stored forms in the journal
    mutant("no stored forms are journalled", "send", (KEEPS_PAYLOADS, "if false then")),
    mutant("stored forms are journalled at every level", "send edit move", (KEEPS_PAYLOADS, "if bodies then")),
    mutant("the level payloads keeps no lines", "receive nack", (" and level ~= 'payloads' and not", " and not")),
    mutant("an edit journals what was before", "edit", ("false, { id, fresh })", "false, { id, old })")),
    mutant("a move journals the old number", "move", ("false, { id, fresh })", "false, { id, body })")),
    # The last line of a message
    mutant("a purge is counted once", "purge", ("m.advance('purged', #ids)", "m.advance('purged', 1)")),
    mutant("purged messages are not named", "purge", ("now, ids[i], facts", "now, '', facts")),
    mutant("a purge forgets attempts", "purge", ("m.parse(before[i]).attempts", "0")),
    mutant("a purge tells no state", "purge", ("'', '', state)", "'', '', '')")),
    mutant("a purge leaves the sending out", "purge", ("m.read(call('HGET', messages, ids[i]) or '')", "m.read('')")),
    mutant("a delete tells no state", "delete", ("from .. detail", "detail")),
    mutant("a move tells no state", "move", ("state .. ', moved to '", "'moved to '")),
    # Verdicts that are remembered
    mutant("lost leases are remembered", DECIDERS, ("if not missed[(i - first) / width + 1] then", "if true then")),
    mutant("verdicts are remembered by id", DECIDERS, ("= ARGV[i + 1], word", "= ARGV[i], word")),
    mutant("a release remembers every other verdict", "release", ("'release', lost, 2, 2)", "'release', lost, 2, 4)")),
    mutant("every verdict is an ack", "nack bury release", ("= ARGV[i + 1], word", "= ARGV[i + 1], 'ack'")),
    # The lease journal
    mutant("a second owner is let in", "hold", ("holder ~= owner and tonumber(owned_until) > now", "false")),
    mutant("an ownership never ends", "hold", ("holder ~= owner and tonumber(owned_until) > now", "holder ~= owner")),
    mutant("an ownership ends a moment late", "hold", ("tonumber(owned_until) > now", "tonumber(owned_until) >= now")),
    mutant(
        "rows of leases that are lost",
        "hold",
        (
            "m.held(call('HGET', deliveries, id), token, now)",
            "call('HGET', deliveries, id) and m.parse(call('HGET', deliveries, id))",
        ),
    ),
    mutant("rows are numbered with gaps", "hold", ("last = last + #rows / 2", "last = last + #rows")),
    mutant("a repeated call makes rows again", "hold", (" and first ~= before then", " then")),
    mutant("a renewal forgets what was copied last", "hold", ("ARGV[5] or before or ''", "ARGV[5] or ''")),
    mutant("calls are told apart by the message", "hold", ("ARGV[5] or before", "ARGV[4] or before")),
    mutant("rows without attempts", "hold", ("d.attempts .. '\\t' .. d.received", "1 .. '\\t' .. d.received")),
    mutant("clear takes what reaches beyond", "clear", ("format('0-%d', upto)", "format('0-%d', upto + 1)")),
    mutant("clear leaves verdicts", "clear", ("call('HDEL', verdicts, unpack(tokens))", "")),
    mutant("clear forgets one verdict per call", "clear", ("unpack(tokens)", "tokens[1]")),
    mutant("clear leaves rows", "clear", ("call('XDEL', leases, entries[i][1])", "")),
    # Messages taken back and given up, progress and results
    mutant("revoke takes what is not leased", "revoke", ("call('ZSCORE', leased, id) and m.parse", "m.parse")),
    mutant("revoked keeps its token", "revoke", ("d.token, d.expires = '', 0\n    call", "call")),
    mutant("revoked stays leased", "revoke", ("call('ZREM', leased, id)", "")),
    mutant(
        "revoked counts no attempt",
        "revoke",
        ("d.token, d.expires = '', 0\n    call", "d.token, d.expires, d.attempts = '', 0, d.attempts - 1\n    call"),
    ),
    mutant(
        "revoked loses its place",
        "revoke",
        ("m.position(d.facts, d.sequence)", "m.position(d.facts, d.sequence + 1000)"),
    ),
    mutant("revoked leaves no trace in the history", "revoke", ("m.remember(history, id", "tostring(history, id")),
    mutant("revoke wakes nobody", "revoke", ("if moved then", "if false then")),
    mutant("revoke ignores the unique key", "revoke", ("m.hold_unique(unique, d.limits, id, 'r')", "")),
    mutant("revoke writes no line", "revoke", ("write(m.advance('revoked', 1)", "tostring(m.advance('revoked', 1)")),
    mutant("cancel takes what is dead", "cancel", ("from ~= '' and from ~= 'dead' and", "from ~= '' and")),
    mutant("cancel takes what is done", "cancel", ("and from ~= 'done' then", "then")),
    mutant("cancelled stays in its state", "cancel", ("call('ZREM', places[from], id)", "")),
    mutant("cancelled keeps its payload", "cancel", ("m.forget(messages, deliveries, history, { id })", "")),
    mutant("cancelled keeps its unique key", "cancel", ("m.hold_unique(unique, limits, id, 'g')", "")),
    mutant("a cancelled lease is not remembered", "cancel", ("if d.expires > now then", "if false then")),
    mutant("an ended lease is remembered as cancelled", "cancel", ("if d.expires > now then", "if true then")),
    mutant(
        "cancelled leases are remembered for ever", "cancel", ("call('ZREMRANGEBYSCORE', cancelled, '-inf', now)", "")
    ),
    mutant("cancel wakes nobody", "cancel", ("if freed and set[3] then", "if false then")),
    mutant("cancelled is no end to the journal", "cancel", ("from .. detail) }, true)", "from .. detail) }, false)")),
    mutant(
        "a cancelled lease is only lost", "extend", ("if call('ZSCORE', cancelled, ARGV[i + 1]) then", "if false then")
    ),
    mutant("extend forgets the progress", "extend", ("m.pack(d) .. d.progress", "m.pack(d)")),
    mutant(
        "progress without a lease",
        "progress",
        (
            "m.held(call('HGET', deliveries, id), token, now)",
            "call('HGET', deliveries, id) and m.parse(call('HGET', deliveries, id))",
        ),
    ),
    mutant(
        "progress outlives its lease",
        "revoke nack release",
        ("d.replays .. '\\n' .. d.limits", "d.replays .. '\\n' .. d.limits .. d.progress"),
    ),
    mutant("a result without a token", "ack_result", ("if token == given and", "if token and")),
    mutant("the result is dropped", "ack_result", ("m.remember(k.history, id,", "tostring(k.history, id,")),
    mutant("an ack with a result moves nothing", "ack_result", ("  apply(gone, now, keep, k)\n", "")),
    mutant(
        "an ack with a result is not counted",
        "ack_result",
        ("(tonumber(total_acked) or 0) + 1", "tonumber(total_acked) or 0"),
    ),
    mutant(
        "an ack with a result frees no place",
        "ack_result",
        ("if tonumber(set.max_leased) and call('ZCARD', ready) > 0 then", "if false then"),
    ),
)


def test_the_scripts_as_they_are_pass_the_scenario(bench: Bench) -> None:
    play(Pair(bench))


#: One fault in so many is planted in every run, all by `make mutants` and `make long`.
ALWAYS = 8


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(fault, id=fault.name.replace(" ", "-"), marks=[pytest.mark.chaos] if number % ALWAYS else [])
        for number, fault in enumerate(MUTANTS)
    ],
)
def test_a_planted_fault_is_caught(debian: Bench, fault: Mutant) -> None:
    pair = Pair(debian, fault.plant())
    # Not any error will do: a fault that only breaks the script's text would prove nothing.
    with pytest.raises(Disagreement):
        play(pair)

"""Faults planted in the command line."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_STATES = ("tests/faults/test_server_states.py", "-k", "ends_with_three")
_MESSAGES = "tests/cli/test_messages.py"
_ADMIN = "tests/cli/test_admin.py"
_INSPECT = "tests/cli/test_inspect.py"

FAULTS: Final = (
    Fault("cli", "a send that nobody confirmed ends as refused", "Code", "UNAVAILABLE = 3", "UNAVAILABLE = 4", _STATES),
    Fault(
        "cli",
        "the value of an option is taken for a global option",
        "options_first",
        "if (word in valued or word in others) and",
        "if word in valued and",
        ("tests/rsmq/test_cli.py",),
    ),
    Fault(
        "cli",
        "a global option behind the command is not taken for one",
        "options_first",
        "if word in flags or word in valued or word.startswith(assigned) else rest",
        "if word in valued or word.startswith(assigned) else rest",
        (_INSPECT,),
    ),
    Fault(
        "cli",
        "the last line of standard input is lost when it has no line end",
        "line_batches",
        "if rest:",
        "if False:",
        (_MESSAGES, "-k", "every_line"),
    ),
    Fault(
        "cli",
        "a line that is not JSON is skipped without a word",
        "_values",
        "return values, error",
        "continue",
        (_MESSAGES, "-k", "every_line"),
    ),
    Fault(
        "cli",
        "a line waits until a batch is full",
        "line_batches",
        "while chunk := stream.read1(READ_SIZE):",
        "while chunk := stream.read(READ_SIZE):",
        (_MESSAGES, "-k", "before_the_next_one"),
    ),
    Fault(
        "cli",
        "send ignores --durability",
        "_send_one",
        "send(value, id=id, durability=durability, **options)",
        "send(value, id=id, **options)",
        (_MESSAGES, "-k", "durability"),
    ),
    Fault(
        "cli",
        "send of many lines ignores --durability",
        "send_lines",
        "send_many(values, durability=durability, **options)",
        "send_many(values, **options)",
        (_MESSAGES, "-k", "durability"),
    ),
    Fault(
        "cli",
        "send ignores --lease",
        "send",
        '        "lease": lease,\n',
        "",
        (_MESSAGES, "-k", "carries_everything"),
    ),
    Fault(
        "cli",
        "receive acks messages before anybody has read them",
        "receive",
        "        for message in batch:\n            _print_received(session, message)\n",
        "        if ack:\n            opened.ack_many(batch)\n"
        "        for message in batch:\n            _print_received(session, message)\n",
        (_MESSAGES, "-k", "nobody_read"),
    ),
    Fault(
        "cli",
        "receive ignores --lease",
        "receive",
        "wait, lease=lease)",
        "wait)",
        (_MESSAGES, "-k", "holds_or_acks"),
    ),
    Fault(
        "cli",
        "receive from a misspelt queue makes it",
        "Session.existing",
        "if queue not in names:",
        "if False:",
        (_MESSAGES, "-k", "makes_none"),
    ),
    Fault(
        "cli",
        "consume ignores --concurrency",
        "make_consumers",
        "concurrency=consuming.concurrency,",
        "",
        (_MESSAGES, "-k", "hands_back"),
    ),
    Fault(
        "cli",
        "consume ignores --grace",
        "make_consumers",
        "grace=consuming.grace,",
        "",
        (_MESSAGES, "-k", "hands_back"),
    ),
    Fault(
        "cli",
        "a consumer that fails ends as if all was well",
        "run_all",
        "if failures:",
        "if False:",
        (_MESSAGES, "-k", "fails_ends_with_its_error"),
    ),
    Fault(
        "cli",
        "a consumer that fails leaves the others running",
        "run_all.serve",
        "            stop()\n",
        "            pass\n",
        (_MESSAGES, "-k", "fails_ends_with_its_error"),
    ),
    Fault(
        "cli",
        "purge does not ask where nobody can answer",
        "Session.confirm",
        "if needed:",
        "if False:",
        (_ADMIN, "-k", "purge"),
    ),
    Fault(
        "cli",
        "drop does not look whether a queue is in use",
        "drop",
        "if not force:",
        "if False:",
        (_ADMIN, "-k", "drop_is_refused"),
    ),
    Fault(
        "cli",
        "replay ignores --rate",
        "replay",
        "**chosen, rate=rate, dry_run",
        "**chosen, dry_run",
        (_ADMIN, "-k", "interrupted_replay"),
    ),
    Fault(
        "cli",
        "an interrupted replay does not say how to go on",
        "replay",
        "{queue} --task {done.id}",
        "{queue}",
        (_ADMIN, "-k", "interrupted_replay"),
    ),
    Fault(
        "cli",
        "a followed journal repeats its lines",
        "newest_then_more",
        "places[name] = entries[-1].position",
        "pass",
        (_INSPECT, "-k", "shown_and_followed"),
    ),
    Fault(
        "cli",
        "the doctor ends well though it found a danger",
        "doctor",
        'finding.level == "danger"',
        'finding.level == "error"',
        (_INSPECT, "-k", "ends_with_five"),
    ),
    Fault(
        "cli",
        "an unexpected failure ends as if all was well",
        "run",
        "        print_error(type(error).__name__, str(error), json=session.json)\n        return code_of(error)",
        "        print_error(type(error).__name__, str(error), json=session.json)\n        return Code.OK",
        (_MESSAGES, "-k", "refused_in_one_line"),
    ),
)

"""Faults planted in the data pipeline. Most are tried without Spark: sources and writers are plain Python."""

from __future__ import annotations

from typing import Final

from tests.mutants.planting import Fault

_STREAM = "tests/spark/test_journal_stream.py"
_CONSUMER = "tests/spark/test_consumer.py"
_CRASHES = "tests/spark/test_consumer_crashes.py::TestCrashes"
_WRITERS = "tests/spark/test_writers.py"
_REGISTRATION = "tests/spark/test_registration.py"
_CHARTS = "tests/spark/test_report_charts.py"

FAULTS: Final = (
    Fault(
        "spark",
        "the last line of every part is not read",
        "split",
        "after = upto",
        "after = upto + 1",
        ("tests/spark/test_journal_source.py::TestSplitting",),
    ),
    Fault(
        "spark",
        "a queue that was removed and recreated is read in place of the old one",
        "read_part",
        "place.incarnation != one.incarnation",
        "False",
        (f"{_STREAM}::TestLossOfAPlannedBatch",),
    ),
    Fault(
        "spark",
        "trimmed lines are passed over although loss must end the query",
        "JournalStreamReader._lost",
        'if place.floor > read["position"]:',
        "if False:",
        (f"{_STREAM}::TestLoss",),
    ),
    Fault(
        "spark",
        "a reader is registered at what is planned, so lines of a batch that fails are trimmed",
        "JournalStreamReader._register",
        'reader.register(queue, self.options.reader, place["position"])',
        "reader.register(queue, self.options.reader, now.last)",
        (f"{_STREAM}::TestRegistration",),
    ),
    Fault(
        "spark",
        "the limit on rows per batch is ignored",
        "JournalStreamReader.latestOffset",
        "if isinstance(limit, streaming.ReadMaxRows):",
        "if False:",
        (f"{_STREAM}::TestAdmission",),
    ),
    Fault(
        "spark",
        "journals of queues that appear later do not wait for the pipeline",
        "Registration._watch",
        "self.look()",
        "pass",
        (f"{_REGISTRATION}::TestRegistration",),
    ),
    Fault(
        "spark",
        "lines that are missing in a lake are not counted",
        "Coverage.missing",
        "return self.last - self.first + 1 - self.lines",
        "return 0",
        (f"{_REGISTRATION}::TestCoverage",),
    ),
    Fault(
        "spark",
        "leases of a batch are not renewed while its tasks run",
        "_Keeper._renew",
        "lost = self._journal.renew(list(held.values()), self._lease) if held else set()",
        "lost: set[str] = set()",
        (f"{_CONSUMER}::TestKeeping",),
    ),
    Fault(
        "spark",
        "the renewal of leases ends at its first failure",
        "_Keeper.run",
        'log.warning("renewal failed consumer=%s error=%s", self._journal.consumer, type(error).__name__)',
        "return",
        (f"{_CONSUMER}::TestKeeping",),
    ),
    Fault(
        "spark",
        "a consumer takes new messages before it has repeated those it claimed before a crash",
        "LeaseStreamReader.latestOffset",
        "if last > begun:",
        "if False:",
        (_CRASHES,),
    ),
    Fault(
        "spark",
        "rows whose lease went to somebody else are handed out again",
        "LeaseStreamReader._check",
        "row.token in lost and row.token not in settled",
        "False",
        (_CRASHES,),
    ),
    Fault(
        "spark",
        "rows that are not committed are forgotten with a lost checkpoint",
        "LeaseStreamReader.initialOffset",
        "first - 1 if first is not None else journal.last()",
        "journal.last()",
        (_CRASHES,),
    ),
    Fault(
        "spark",
        "an id made from columns changes with every try, so a repeated job sends twice",
        "hashed_id",
        "return hashlib.sha256(text)",
        "return hashlib.sha256(text + new_id().encode())",
        (f"{_WRITERS}::TestIds", f"{_WRITERS}::TestTwice"),
    ),
    Fault(
        "spark",
        "a lease that was settled before gets a second verdict",
        "settle_all",
        'if row["lease_token"] not in decided]',
        "]",
        (f"{_WRITERS}::TestSettling",),
    ),
    Fault(
        "spark",
        "a failed row waits for the queue's delay instead of its own",
        "_settlement",
        "if delay is not None",
        "if False",
        (f"{_WRITERS}::TestSettling",),
    ),
    Fault(
        "spark",
        "rows that fail in a function are acknowledged",
        "_judged",
        'judged |= {"verdict": "nack", "error_class": name,',
        'judged |= {"error_class": name,',
        (f"{_CONSUMER}::TestWithSpark",),
    ),
    Fault(
        "spark",
        "a replay sends copies of messages that still wait in their queue",
        "Replay._with_actions",
        'F.when(state.isin("ready", "scheduled", "retrying", "leased"), WAITING)',
        'F.when(state.isin("nowhere"), WAITING)',
        ("tests/spark/test_replay.py::TestPlans",),
    ),
    Fault(
        "spark",
        "a replay that is run again sends its copies again",
        "Replay._sent_before",
        'lines.load().where(F.col("event") == "sent")',
        'lines.load().where(F.col("event") == "")',
        ("tests/spark/test_replay.py::TestRuns", "tests/spark/test_replay.py::TestKilled"),
    ),
    Fault(
        "spark",
        "dates that new batches touch are not computed anew",
        "Pipeline.refresh",
        "dates = sorted(day for day in touched if day not in removed)",
        "dates = sorted(touched)[:1]",
        ("tests/spark/test_pipeline.py::TestRuns",),
    ),
    Fault(
        "spark",
        "a chart of the report draws a line through minutes without a value",
        "_stretches",
        "_runs(value is not None for value in values)",
        "((0, len(values), True),)",
        (_CHARTS,),
    ),
    Fault(
        "spark",
        "charts of the report are scaled linearly, so slow messages hide all others",
        "fitting",
        "return durations(min((value for value in values if value > 0), default=0), max(values))",
        "return linear(max(values), unit)",
        (_CHARTS,),
    ),
)

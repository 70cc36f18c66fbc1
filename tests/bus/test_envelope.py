"""Envelopes as values: what becomes of an event's attributes in headers, what is read back, and what is refused."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from restante import InvalidInput
from restante.bus.envelope import RESERVED, Envelope, Malformed, new_envelope
from restante.core.message import new_id
from restante.core.trace import current_trace

AT = datetime(2026, 2, 3, 4, 5, 6, 789000, tzinfo=UTC)


class TestAttributes:
    def test_every_attribute_has_its_header(self) -> None:
        made = Envelope(
            "e1",
            "order.paid",
            "shop",
            AT,
            "2",
            {"traceparent": "00-a-b-01"},
            {"tenant": 7},
            expires_at=AT + timedelta(seconds=1),
        )
        assert made.attributes() == {
            "tenant": 7,
            "specversion": "1.0",
            "id": "e1",
            "type": "order.paid",
            "source": "shop",
            "time": "2026-02-03T04:05:06.789+00:00",
            "schemaversion": "2",
            "expires_at": "2026-02-03T04:05:07.789+00:00",
            "traceparent": "00-a-b-01",
        }

    def test_what_is_not_there_has_no_header_and_the_time_is_now(self) -> None:
        before = datetime.now(UTC).replace(microsecond=0)
        made = Envelope("e1", "order.paid").attributes()
        assert set(made) == {"specversion", "id", "type", "source", "time"}
        assert made["source"] == ""
        assert before <= datetime.fromisoformat(made["time"]) <= datetime.now(UTC)

    def test_own_headers_never_replace_an_attribute(self) -> None:
        made = Envelope("e1", "order.paid", headers={"id": "mine"}, trace={"tracestate": "a"})
        assert made.attributes()["id"] == "e1"
        assert made.attributes()["tracestate"] == "a"


class TestReading:
    def test_it_is_read_back_whole(self) -> None:
        made = Envelope(
            "e1",
            "order.paid",
            "shop",
            AT,
            "2",
            {"traceparent": "p", "tracestate": "s"},
            {"tenant": 7},
            3,
            AT + timedelta(hours=1),
        )
        assert Envelope.read(made.attributes(), attempts=3) == made

    def test_what_is_missing_is_empty(self) -> None:
        read = Envelope.read({"id": "e1", "type": "order.paid"})
        assert read == Envelope("e1", "order.paid", "", None, "", {}, {}, 1, None)

    def test_id_and_topic_stand_in_where_the_message_has_none(self) -> None:
        read = Envelope.read({}, id="e2", topic="order.sent")
        assert (read.id, read.topic) == ("e2", "order.sent")
        read = Envelope.read({"id": "e1", "type": "order.paid"}, id="e2", topic="order.sent")
        assert (read.id, read.topic) == ("e1", "order.paid")

    def test_what_the_bus_and_the_broker_set_is_no_header_of_the_publisher(self) -> None:
        headers: dict[str, Any] = dict.fromkeys(RESERVED, "x") | {
            "x-death": [1],
            "own": "kept",
            "id": "e1",
            "type": "order.paid",
        }
        headers |= {"time": "", "expires_at": ""}
        assert dict(Envelope.read(headers).headers) == {"own": "kept"}

    @pytest.mark.parametrize("told", ["2026-02-03T04:05:06", datetime(2026, 2, 3, 4, 5, 6)])
    def test_an_instant_without_a_zone_is_utc(self, told: object) -> None:
        read = Envelope.read({"id": "e1", "type": "order.paid", "time": told})
        assert read.time == datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)

    def test_an_instant_keeps_its_zone(self) -> None:
        at = datetime(2026, 2, 3, 4, 5, 6, tzinfo=timezone(timedelta(hours=2)))
        read = Envelope.read({"id": "e1", "type": "order.paid", "time": at.isoformat()})
        assert read.time == at
        assert read.time is not None
        assert read.time.utcoffset() == timedelta(hours=2)

    def test_a_wrong_id_is_named_as_such(self) -> None:
        with pytest.raises(Malformed, match=r"^not an event: event id "):
            Envelope.read({"id": "a b", "type": "a"})

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"id": "e1"},
            {"type": "a"},
            {"id": "a b\n", "type": "a"},
            {"id": "e1", "type": "a..b"},
            {"id": "e1", "type": "a", "time": "yesterday"},
            {"id": "e1", "type": "a", "expires_at": 5},
            {"id": "e1", "type": "a", 5: "name"},
        ],
    )
    def test_what_is_not_an_event_is_malformed(self, headers: dict[Any, Any]) -> None:
        with pytest.raises(Malformed, match=r"^not an event: "):
            Envelope.read(headers)


class TestOver:
    def test_an_event_without_an_end_is_never_over(self) -> None:
        assert not Envelope("e1", "a").is_over

    def test_it_is_over_from_its_end_on(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Clock(datetime):
            @classmethod
            def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
                assert tz is UTC
                return AT

        monkeypatch.setattr("restante.bus.envelope.datetime", Clock)
        moment = timedelta(milliseconds=1)
        ends = {0: AT, 1: AT - moment, 2: AT + moment}
        assert {n: Envelope("e1", "a", expires_at=end).is_over for n, end in ends.items()} == {
            0: True,
            1: True,
            2: False,
        }


class TestSealing:
    def test_it_is_made_of_what_was_given(self) -> None:
        before = datetime.now(UTC)
        made = new_envelope("order.paid", "shop", id="e1", version="2", headers={"tenant": 7}, expires_at=AT)
        assert made.time is not None
        assert before <= made.time <= datetime.now(UTC)
        assert made == Envelope("e1", "order.paid", "shop", made.time, "2", {}, {"tenant": 7}, 1, AT)

    def test_without_an_id_it_gets_a_new_one(self) -> None:
        one, other = new_envelope("a", ""), new_envelope("a", "")
        assert one.id != other.id
        assert len(one.id) == len(new_id())
        assert (one.version, one.headers, one.expires_at) == ("", {}, None)

    @pytest.mark.parametrize("name", sorted(RESERVED))
    def test_a_name_that_is_the_bus_own_is_refused(self, name: str) -> None:
        with pytest.raises(InvalidInput, match=f"^headers cannot have the names {name}: they are set by the bus$"):
            new_envelope("a", "", headers={name: 1})

    def test_all_such_names_are_named(self) -> None:
        with pytest.raises(InvalidInput, match="names id, time: "):
            new_envelope("a", "", headers={"time": 1, "own": 2, "id": 3})

    @pytest.mark.parametrize("name", ["", "x-death", "x-", 5, None])
    def test_a_name_that_a_broker_would_take_for_its_own_is_refused(self, name: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^a header's name is text that does not start with x-, not "):
            new_envelope("a", "", headers={name: 1})

    @pytest.mark.parametrize("value", [object(), float("nan"), {1, 2}])
    def test_a_header_that_is_no_json_is_refused(self, value: object) -> None:
        with pytest.raises(InvalidInput, match=r"^headers"):
            new_envelope("a", "", headers={"own": value})

    def test_a_wrong_topic_and_a_wrong_id_are_refused(self) -> None:
        with pytest.raises(InvalidInput):
            new_envelope("a..b", "")
        with pytest.raises(InvalidInput, match=r"^event id "):
            new_envelope("a", "", id="")


class TestTrace:
    def test_without_opentelemetry_there_is_none_and_nothing_is_imported(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "opentelemetry", raising=False)
        assert current_trace() == {}
        with Envelope("e1", "a", trace={"traceparent": "p"}).following() as nothing:
            assert nothing is None
        assert "opentelemetry" not in sys.modules

    def test_the_publishers_trace_is_carried_on_and_left_again(self) -> None:
        from opentelemetry import baggage, context, trace
        from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState, use_span

        state = TraceState([("shop", "7")])
        span = NonRecordingSpan(SpanContext(0x1234, 0x5678, False, TraceFlags(1), state))
        token = context.attach(baggage.set_baggage("customer", "secret"))
        try:
            with use_span(span):
                made = new_envelope("a.b", "tests")
        finally:
            context.detach(token)
        assert made.trace == {"traceparent": f"00-{0x1234:032x}-{0x5678:016x}-01", "tracestate": "shop=7"}

        def current() -> int:
            return trace.get_current_span().get_span_context().trace_id

        with Envelope.read(made.attributes()).following():
            assert current() == 0x1234
        assert current() == 0
        with use_span(span), Envelope("e1", "a").following():
            assert current() == 0x1234  # an event without a trace is part of the handler's own

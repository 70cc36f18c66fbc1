"""Settings as values: what is stored for each option, what is read back, and what is refused."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from restante import InvalidInput, exponential, fixed
from restante.core.errors import Corrupt
from restante.core.retry import LONGEST_DELAY
from restante.core.settings import ClientSettings, QueueSettings, milliseconds, queue_fields, valid_durability, whole

#: Every option, with the field that holds it and the text that is stored for a value.
STORED: list[tuple[str, Any, str, str]] = [
    ("lease", 1.5, "lease_ms", "1500"),
    ("lease", timedelta(minutes=1), "lease_ms", "60000"),
    ("max_attempts", 7, "max_attempts", "7"),
    ("retry", fixed(1, 5), "retry", "fixed:1.0,5.0"),
    ("max_length", 10, "max_length", "10"),
    ("max_dead", 11, "max_dead", "11"),
    ("max_payload", 12, "max_payload_bytes", "12"),
    ("max_leased", 13, "max_leased", "13"),
    ("rate", 2, "rate", "2.0"),
    ("keep_done", 0, "keep_done", "0"),
    ("dedup", 0, "dedup_ms", "0"),
    ("timeout", 300, "timeout_ms", "300000"),
    ("soft_timeout", timedelta(seconds=0.5), "soft_timeout_ms", "500"),
    ("durability", "replica:2", "durability", "replica:2"),
    ("journal", "terminal", "journal", "terminal"),
    ("journal_keep", 1000, "journal_keep", "1000"),
    ("journal_cap", 1001, "journal_cap", "1001"),
]
#: The least and the most each whole number may be.
RANGES = {
    "max_attempts": (1, 65535),
    "max_length": (1, 2**40),
    "max_dead": (1, 2**40),
    "max_payload": (1, 512 * 1024 * 1024),
    "max_leased": (1, 2**31),
    "keep_done": (0, 10_000_000),
    "journal_keep": (1000, 2**40),
    "journal_cap": (1000, 2**40),
}


def fields_of(**options: Any) -> dict[str, str]:
    return queue_fields(options)  # type: ignore[arg-type]  # wrong ones too


class TestStored:
    @pytest.mark.parametrize(("option", "value", "field", "text"), STORED)
    def test_each_option_has_its_field_and_is_read_back(self, option: str, value: Any, field: str, text: str) -> None:
        assert fields_of(**{option: value}) == {field: text}
        read = getattr(QueueSettings.parse({field: text}), option)
        assert read == (value.total_seconds() if isinstance(value, timedelta) else value)
        assert type(read) is type(getattr(QueueSettings.parse({}), option)) or getattr(QueueSettings(), option) is None

    def test_none_clears_the_field_and_an_empty_field_is_the_default(self) -> None:
        assert fields_of(lease=None, journal=None) == {"lease_ms": "", "journal": ""}
        assert QueueSettings.parse({"lease_ms": "", "journal": ""}) == QueueSettings()

    def test_the_defaults_are_those_of_the_documentation(self) -> None:
        assert QueueSettings.parse({}).as_dict() == {
            "lease": 30.0,
            "max_attempts": 5,
            "retry": "exponential:1.0:2.0:600.0:0.1",
            "max_length": None,
            "max_dead": None,
            "max_payload": 16 * 1024 * 1024,
            "max_leased": None,
            "rate": None,
            "keep_done": 0,
            "dedup": 60.0,
            "timeout": None,
            "soft_timeout": None,
            "durability": "memory",
            "journal": "full",
            "journal_keep": 100_000,
            "journal_cap": 1_000_000,
            "paused": False,
            "version": 0,
        }

    @pytest.mark.parametrize(("stored", "paused"), [("1", True), ("0", False), ("", False)])
    def test_a_pause_and_the_version_are_read(self, stored: str, paused: bool) -> None:
        read = QueueSettings.parse({"pause": stored, "version": "4"})
        assert (read.paused, read.version) == (paused, 4)

    @pytest.mark.parametrize("spoiled", [{"lease_ms": "soon"}, {"retry": "linear"}, {"rate": "x"}, {"version": "x"}])
    def test_a_hash_that_somebody_else_wrote_to_is_corrupt(self, spoiled: dict[str, str]) -> None:
        with pytest.raises(Corrupt, match=r"not what Restante wrote: .+; configure it again"):
            QueueSettings.parse(spoiled)


class TestRefused:
    def test_an_unknown_option_names_the_nearest(self) -> None:
        with pytest.raises(InvalidInput, match=r"a queue has no setting 'max_atempts': did you mean max_attempts\?"):
            fields_of(max_atempts=3)

    @pytest.mark.parametrize("option", RANGES)
    def test_whole_numbers_keep_to_their_ranges(self, option: str) -> None:
        least, most = RANGES[option]
        assert list(fields_of(**{option: least}).values()) == [str(least)]
        assert list(fields_of(**{option: most}).values()) == [str(most)]
        for wrong in (least - 1, most + 1, float(least), True, "5"):
            with pytest.raises(InvalidInput, match=f"{option} must be a whole number from {least} to {most}, not "):
                fields_of(**{option: wrong})

    @pytest.mark.parametrize("lease", [0, 0.0009, -1, math.nan, "30", True])
    def test_a_lease_is_at_least_a_millisecond(self, lease: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^lease must be "):
            fields_of(lease=lease)
        assert fields_of(lease=0.001) == {"lease_ms": "1"}

    @pytest.mark.parametrize("dedup", [-0.001, math.inf, LONGEST_DELAY + 1])
    def test_a_window_of_deduplication_is_a_duration(self, dedup: float) -> None:
        with pytest.raises(InvalidInput, match=r"^dedup must be between 0 and "):
            fields_of(dedup=dedup)

    @pytest.mark.parametrize("rate", [0, 0.0009, 1e6 + 1, True, "5", math.nan])
    def test_a_rate_keeps_to_its_range(self, rate: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^rate must be messages per second from 0\.001 to 1000000, not "):
            fields_of(rate=rate)
        assert fields_of(rate=0.001) == {"rate": "0.001"}
        assert fields_of(rate=1e6) == {"rate": "1000000.0"}

    def test_a_retry_policy_is_not_a_number(self) -> None:
        with pytest.raises(
            InvalidInput, match=r"^retry must be a RetryPolicy such as restante.exponential\(1\), not 5"
        ):
            fields_of(retry=5)

    @pytest.mark.parametrize("level", ["none", "", 1])
    def test_a_journal_level_is_one_of_four(self, level: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^journal must be one of full, payloads, terminal, off, not "):
            fields_of(journal=level)
        assert fields_of(journal="off") == {"journal": "off"}

    @pytest.mark.parametrize(
        "level", ["", "disc", "replica", "replica:", "replica:0", "replica:101", "replica:x", "replica:-1", "memory:1"]
    )
    def test_a_durability_is_memory_disk_or_a_number_of_replicas(self, level: str) -> None:
        with pytest.raises(InvalidInput, match=r"^durability must be memory, disk or replica:n, not "):
            valid_durability(level)
        with pytest.raises(InvalidInput):
            fields_of(durability=level)

    def test_every_durability_there_is_is_taken(self) -> None:
        for level in ("memory", "disk", "replica:1", "replica:100"):
            assert valid_durability(level) == level


class TestMilliseconds:
    @pytest.mark.parametrize(
        ("given", "milli"), [(0, 0), (0.0001, 1), (1.0001, 1001), (0.1 + 0.2, 300), (timedelta(seconds=2), 2000)]
    )
    def test_a_fraction_of_one_is_rounded_up_and_the_noise_of_floats_is_not(
        self, given: float | timedelta, milli: int
    ) -> None:
        assert milliseconds(given, "delay") == milli

    def test_the_least_is_refused_below(self) -> None:
        assert milliseconds(0.5, "delay", least=0.5) == 500
        with pytest.raises(InvalidInput, match=r"^delay must be between 0\.5 and "):
            milliseconds(0.4, "delay", least=0.5)

    def test_a_whole_number_is_given_back(self) -> None:
        assert whole(3, "n", 3, 3) == 3


class TestClients:
    def test_the_defaults_are_those_of_the_documentation(self) -> None:
        made = ClientSettings.parse({})
        assert made == ClientSettings(1.5, 5.0, 4.0, False, 16)

    def test_durations_become_seconds(self) -> None:
        made = ClientSettings(connect_timeout=timedelta(seconds=2), socket_timeout=1, patience=0)  # type: ignore[arg-type]
        assert (made.connect_timeout, made.socket_timeout, made.patience) == (2.0, 1.0, 0.0)

    @pytest.mark.parametrize(
        ("option", "wrong", "least"),
        [("connect_timeout", 0.0009, 0.001), ("socket_timeout", 0, 0.001), ("patience", -0.001, 0)],
    )
    def test_durations_that_are_too_short_are_refused(self, option: str, wrong: float, least: float) -> None:
        with pytest.raises(InvalidInput, match=f"^{option} must be between {least:g} and "):
            ClientSettings(**{option: wrong})  # type: ignore[arg-type]
        assert getattr(ClientSettings(**{option: least}), option) == least  # type: ignore[arg-type]

    @pytest.mark.parametrize("wrong", [-1, 65536, 1.0, True])
    def test_idle_connections_are_a_whole_number(self, wrong: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^idle_connections must be a whole number from 0 to 65535, not "):
            ClientSettings(idle_connections=wrong)
        assert ClientSettings(idle_connections=0).idle_connections == 0
        assert ClientSettings(idle_connections=65535).idle_connections == 65535

    @pytest.mark.parametrize("wrong", ["yes", 1, None])
    def test_allowing_eviction_is_yes_or_no(self, wrong: Any) -> None:
        with pytest.raises(InvalidInput, match=r"^allow_eviction must be True or False, not "):
            ClientSettings(allow_eviction=wrong)

    def test_an_unknown_option_names_the_nearest(self) -> None:
        with pytest.raises(InvalidInput, match=r"^connect\(\) has no option 'patiense': did you mean patience\?"):
            ClientSettings.parse({"patiense": 1})  # type: ignore[typeddict-unknown-key]
        with pytest.raises(InvalidInput, match="did you mean directory"):
            ClientSettings.parse({"directry": 1}, "directory")  # type: ignore[typeddict-unknown-key]


def test_a_policy_is_stored_whole() -> None:
    assert fields_of(retry=exponential(2, factor=3, cap=4, jitter=0.5)) == {"retry": "exponential:2.0:3.0:4.0:0.5"}

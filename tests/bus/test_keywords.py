"""Keywords and settings of the bus: what is unknown is refused with what was probably meant, what contradicts too."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery.app.defaults import SETTING_KEYS

from restante import fixed
from restante.bus import AsyncBusClient, Bus, BusClient, Event
from restante.bus.celery_settings import CeleryOptions
from restante.bus.dedup import MemoryRecords, NoRecords
from restante.compat.amqp_events.celery import events_app
from restante.core.errors import InvalidInput
from tests.bus.places import OnRabbitMQ
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import CHECKOUT

URL = "redis://127.0.0.1:1/0"


def nothing(data: Any) -> None:
    """A handler."""


class TestUnknownKeywords:
    @pytest.mark.parametrize(
        ("given", "meant"),
        [
            ({"max_attemps": 3}, "max_attempts"),
            ({"brocker": "amqp://"}, "broker"),
            ({"prefx": "a"}, "prefix"),
            ({"import": ["a"]}, "imports"),
            ({"worker_concurency": 3}, "worker_concurrency"),
            ({"rabbitmq": {"archive_secs": 3}}, "archive_seconds"),
        ],
    )
    def test_a_bus_names_the_nearest(self, given: dict[str, Any], meant: str) -> None:
        with pytest.raises(InvalidInput, match=f"did you mean {meant}\\?"):
            Bus("s", URL, **given)

    @pytest.mark.parametrize(
        ("given", "remedy"),
        [
            ({"dedup": "redis"}, "dedup is the window of deduplication in seconds, not 'redis': dedup_store='redis'"),
            ({"dedup": "memory"}, "dedup_store='memory' keeps its records in this process"),
            ({"dedup": "off"}, "dedup=0 turns deduplication off"),
            ({"dedup": "1h"}, "not '1h': dedup=86400 is a day"),
            ({"dedup": -1}, "dedup must be between 0 and"),
            ({"dedup": None}, "dedup must be a number of seconds"),
            ({"dedup_store": "off"}, "redis or memory, not 'off'; dedup=0 turns"),
            ({"dedup_stor": "memory"}, "did you mean dedup_store"),
            ({"window": 60}, "Bus does not take window: the window of deduplication is dedup=SECONDS"),
        ],
    )
    def test_the_old_words_of_deduplication_are_refused_with_the_new(self, given: dict[str, Any], remedy: str) -> None:
        with pytest.raises(InvalidInput, match=remedy):
            Bus("s", URL, **given)
        if "window" not in given and given != {"dedup": None}:
            with pytest.raises(InvalidInput, match=remedy):
                events_app("s", broker_url=URL, **given)

    def test_records_in_redis_need_one(self) -> None:
        with pytest.raises(InvalidInput, match=r"store='redis://…', or choose dedup_store='memory' .* or dedup=0"):
            Bus("s", "amqp://localhost")
        assert isinstance(Bus("s", "amqp://localhost", dedup=0).records, NoRecords)
        assert isinstance(Bus("s", "amqp://localhost", dedup_store="memory").records, MemoryRecords)
        assert isinstance(events_app("s", broker_url="amqp://localhost").records, NoRecords)
        assert isinstance(events_app("s", broker_url="amqp://localhost", dedup_store="memory").records, MemoryRecords)
        assert not Bus("s", URL, dedup=0).has_shared_records
        assert Bus("s", URL, dedup=timedelta(hours=1)).has_shared_records

    @pytest.mark.parametrize("client", [BusClient, AsyncBusClient])
    async def test_a_client_names_the_nearest(self, client: Any) -> None:
        with pytest.raises(InvalidInput, match="did you mean patience"):
            client(URL, patiense=3)
        with pytest.raises(InvalidInput, match="did you mean source"):
            client(URL, sorce="website")
        with pytest.raises(InvalidInput, match="on RabbitMQ has no option 'socket_timeout'"):
            client("amqp://localhost", socket_timeout=3)
        with pytest.raises(InvalidInput, match="patience"):
            client("amqp://localhost", patience="long")

    def test_every_verb_names_the_nearest_before_anything_is_sent(self) -> None:
        bus: Any = Bus("s", URL)  # there is no such server: sending would raise something else
        cases: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
            (bus.publish, ("a.b",), {"dealy": 3}, "delay"),
            (bus.publish, ("a.b",), {"wiat": False}, "wait"),
            (bus.publish_many, ([],), {"nobdy": "keep"}, "known are delay"),
            (bus.call, ("a.b",), {"time_out": 3}, "timeout"),
            (bus.call_all, ("a.b",), {"header": {}}, "headers"),
            (bus.event, ("a.b",), {"versoin": "1"}, "version"),
            (bus.subscribe, ("a.b",), {"max_retrys": 3}, "max_retries"),
            (bus.subscribe, ("a.b",), {"celery_option": {}}, "celery_options"),
            (bus.subscribe, ("a.b",), {"celery_options": {"ack_late": True}}, "acks_late"),
            (bus.answer, ("a.b",), {"timelimit": 3}, "time_limit"),
        ]
        for verb, args, given, meant in cases:
            with pytest.raises(InvalidInput, match=meant):
                verb(*args, **given)
        bus.close()

    def test_the_class_of_an_event_names_the_nearest(self) -> None:
        with pytest.raises(InvalidInput, match=r"class Paid\(Event\) has no option 'topik': did you mean topic"):

            class Paid(Event, topik="shop.order.paid"):
                """Misspelt."""

        class Sent(Event, topic="shop.order.sent", extra="forbid"):
            """Pydantic's own words are its own."""

        assert Sent.model_config["extra"] == "forbid"

    async def test_so_does_every_verb_with_await(self) -> None:
        client: Any = AsyncBusClient(URL)
        for verb, given, meant in (
            (client.publish, {"dealy": 3}, "delay"),
            (client.call, {"timeot": 3}, "timeout"),
            (client.call_all, {"timeot": 3}, "timeout"),
        ):
            with pytest.raises(InvalidInput, match=f"did you mean {meant}"):
                await verb("a.b", **given)
        await client.close()

    def test_type_checkers_see_them_too(self, tmp_path: Path) -> None:
        program = tmp_path / "wrong.py"
        wrong = [
            "Bus('s', max_attemps=3)",
            "Bus('s', worker_concurency=3)",
            "Bus('s', dedup='off')",
            "Bus('s', dedup_store='off')",
            "bus.publish('a.b', dealy=3)",
            "bus.publish('a.b', delay='soon')",
            "bus.publish_many([], id='x')",
            "bus.call('a.b', time_out=3)",
            "bus.subscribe('a.b', max_retrys=3)",
            "bus.subscribe('a.b', celery_options={'ack_late': True})",
            "bus.answer('a.b', max_retries=3)",
            "BusClient(patiense=3)",
            "bus.event('a.b', versoin='1')",
            "number: int = bus.publish('a.b', wait=False).result().id",
        ]
        fine = [
            "Bus('s', broker_url='amqp://', imports=['a'], worker_concurrency=3, set_as_current=False)",
            "bus.publish('a.b', {}, delay=3, wait=False).result(3).subscriptions",
            "bus.subscribe('a.b', celery_options={'acks_late': False, 'max_retries': 3}, rate_limit='10/m')",
        ]
        lines = ["from restante import Bus", "from restante.bus import BusClient", "bus = Bus('s')", *wrong, *fine]
        program.write_text("\n".join(lines) + "\n")
        done = subprocess.run(
            [sys.executable, "-m", "mypy", "--strict", "--config-file", str(CHECKOUT / "pyproject.toml"), str(program)],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
        )
        found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if "error:" in line}
        assert found == set(range(4, 4 + len(wrong))), done.stdout

    def test_every_setting_of_celery_is_taken(self) -> None:
        backends = {name for name in SETTING_KEYS if name not in CeleryOptions.__optional_keys__}
        assert {name.partition("_")[0] for name in backends if name != "broker_url"} <= {
            "arangodb",
            "azureblockblob",
            "cache",
            "cassandra",
            "control",
            "cosmosdbsql",
            "couchbase",
            "database",
            "elasticsearch",
            "event",
            "gcs",
            "mongodb",
            "redis",
            "s3",
            "security",
            "broker",
        }
        bus = Bus(
            "s",
            URL,
            imports=["json"],
            include=["os"],
            backend="rpc://",
            set_as_current=False,
            timezone="Europe/Rome",
            worker_prefetch_multiplier=4,
            broker_transport_options={"visibility_timeout": 9},
            redis_max_connections=3,  # type: ignore[call-arg] # of a backend, which type checkers are not told of
        )
        conf = bus.conf
        assert (conf.imports, conf.include, conf.result_backend) == (["json"], ["os"], "rpc://")
        assert (conf.timezone, conf.worker_prefetch_multiplier, conf.redis_max_connections) == ("Europe/Rome", 4, 3)
        assert conf.broker_transport_options["visibility_timeout"] == 9
        assert conf.task_acks_late is True


class TestOptionsOfTasks:
    @pytest.mark.parametrize(
        ("options", "text"),
        [
            ({"acks_on_failure_or_timeout": True}, "for one attempt give max_attempts=1"),
            ({"acks_on_failure": True}, "max_attempts=1"),
            ({"acks_on_timeout": True}, "max_attempts=1"),
            ({"ignore_result": False}, "an event has no result"),
            ({"queue": "fast"}, "give name="),
            ({"priority": 3}, "the publisher sets it"),
            ({"serializer": "pickle"}, "data are JSON"),
            ({"base": object}, "Celery's signals"),
            ({"retry_on_worker_lost": True}, "by its policy"),
            ({"acks_late": "no"}, "True or False"),
            ({"rate_limit": "often"}, "'10/m'"),
            ({"time_limit": "long"}, "time_limit"),
            ({"autoretry_for": KeyError}, "a tuple of classes"),
            ({"max_retries": "many"}, "whole number"),
            ({"max_retries": -1}, "whole number"),
            ({"retry_backoff": "fast"}, "number of seconds"),
            ({"retry_kwargs": {"max_retry": 3}}, "max_retries"),
            ({"max_attempts": 3, "max_retries": 7}, "give one of them"),
            ({"retry": fixed(1), "retry_backoff": 3}, "give one of them"),
            ({"celery_options": {"acks_late": False}, "acks_late": True}, "given twice"),
            ({"celery_options": ["acks_late"]}, "is a dict"),
        ],
    )
    def test_what_cannot_hold_is_refused_with_the_remedy(self, options: dict[str, Any], text: str) -> None:
        bus = Bus("s", URL)
        with pytest.raises(InvalidInput, match=text):
            bus.subscribe("a.b", **options)(nothing)

    def test_what_holds_already_may_be_said(self) -> None:
        bus = Bus("s", URL)
        bus.subscribe(
            "a.b",
            acks_late=True,
            acks_on_failure_or_timeout=False,
            ignore_result=True,
            reject_on_worker_lost=True,
            throws=(KeyError,),
            rate_limit="10/m",
            soft_time_limit=3,
            time_limit=4,
            send_events=False,
            celery_options={"autoretry_for": (OSError,), "max_retries": 2, "acks_late": True},
        )(nothing)
        handler = bus.subscriptions["s.nothing"]
        assert (handler.retry_rule.max_attempts, handler.retry_rule.errors) == (3, (OSError,))
        task = bus.tasks["s.nothing"]
        assert (task.rate_limit, task.soft_time_limit, task.time_limit, task.throws) == ("10/m", 3, 4, (KeyError,))

    def test_options_of_retries_are_refused_for_calls(self) -> None:
        bus: Any = Bus("s", URL)
        with pytest.raises(InvalidInput, match="calls are not retried"):
            bus.answer("a.b", autoretry_for=(KeyError,))


class TestOneBroker:
    def test_broker_url_is_the_broker(self) -> None:
        bus = Bus("s", broker_url="amqp://localhost", dedup=0)
        assert (bus.broker_url, bus.worker_backend.broker) == ("amqp://localhost", "rabbitmq")
        assert bus.conf.broker_url == "amqp://localhost"
        assert Bus("s", URL, broker_url=URL.replace("redis://", "restante://")).broker_url == URL
        assert BusClient(broker_url=URL).url == URL
        bus_of: Any = lambda **given: Bus("s", **given)  # noqa: E731
        make: Any
        for make in (bus_of, BusClient):
            with pytest.raises(InvalidInput, match="broker and broker_url are the same option"):
                make(broker=URL, broker_url="amqp://localhost")
            with pytest.raises(InvalidInput, match="one URL"):
                make(broker=[URL])

    @pytest.mark.parametrize("name", ["broker_read_url", "broker_write_url", "task_queues", "broker_host"])
    def test_what_a_bus_sets_itself_cannot_be_given(self, name: str) -> None:
        given: dict[str, Any] = {name: "x"}
        with pytest.raises(InvalidInput, match=f"Bus does not take {name}"):
            Bus("s", URL, **given)

    @pytest.mark.parametrize("configured", [False, True])
    @pytest.mark.parametrize(
        "settings",
        [
            {"broker_url": "amqp://other"},
            {"broker_read_url": "redis://other/0"},
            {"BROKER_URL": "amqp://other"},
            {"broker_transport_options": {"global_keyprefix": "x"}},
            {"task_queues": []},
            {"task_default_queue": "x"},
        ],
    )
    def test_settings_that_part_worker_and_publisher_are_refused(
        self, settings: dict[str, Any], configured: bool
    ) -> None:
        bus = Bus("s", URL)
        if configured:
            assert bus.conf.timezone is None
        bus.config_from_object(SimpleNamespace(**settings))
        if settings == {"task_queues": []}:
            return  # empty is Celery's word for none
        for verb in (lambda: bus.publish("a.b"), bus.declare, lambda: bus.aio):
            with pytest.raises(InvalidInput, match=r"Bus\(|on a bus"):
                verb()

    def test_so_are_settings_made_by_hand(self) -> None:
        bus = Bus("s", URL)
        bus.conf.broker_url = "amqp://other"
        with pytest.raises(InvalidInput, match="amqp://other"):
            bus.publish("a.b")
        bus = Bus("s", URL, prefix="acme:")
        bus.conf.broker_transport_options = {"visibility_timeout": 3}
        bus.client.close()
        assert bus.conf.broker_transport_options == {"visibility_timeout": 3, "global_keyprefix": "acme:"}

    @pytest.mark.parametrize("configured", [False, True])
    def test_a_file_of_settings_goes_before_the_defaults_of_a_bus(self, configured: bool) -> None:
        bus = Bus("s", URL, task_reject_on_worker_lost=True)
        if configured:
            assert bus.conf.worker_prefetch_multiplier == 1
        bus.config_from_object(
            SimpleNamespace(
                task_acks_late=False,
                worker_prefetch_multiplier=7,
                broker_url=URL,
                timezone="Europe/Rome",
                broker_transport_options={"visibility_timeout": 5},
            )
        )
        conf = bus.conf
        assert (conf.task_acks_late, conf.worker_prefetch_multiplier, conf.timezone) == (False, 7, "Europe/Rome")
        assert conf.task_reject_on_worker_lost is True
        assert conf.broker_transport_options["visibility_timeout"] == 5
        bus.client.close()

    def test_variables_of_celery_are_obeyed_or_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("RESTANTE_BROKER", "RESTANTE_URL"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("CELERY_BROKER_URL", "amqp://elsewhere")
        assert Bus("s", dedup=0).broker_url == "amqp://elsewhere"
        with pytest.raises(InvalidInput, match="CELERY_BROKER_URL in the environment is amqp://elsewhere"):
            Bus("s", URL)
        monkeypatch.delenv("CELERY_BROKER_URL")
        monkeypatch.setenv("CELERY_BROKER_READ_URL", "amqp://elsewhere")
        with pytest.raises(InvalidInput, match="CELERY_BROKER_READ_URL"):
            Bus("s", URL)

    def test_a_bus_by_broker_url_publishes_where_its_worker_reads(
        self, rabbit: Any, redis: Any, tmp_path: Path
    ) -> None:
        from tests.bus.places import Service

        place = OnRabbitMQ(tmp_path, rabbit, redis)
        with Service(place, "billing", ["paid"]):
            bus = Bus("shop", broker_url=rabbit.url, **place.options)
            assert bus.publish("shop.order.paid", 1).subscriptions == 1
            bus.close()
            assert [row["data"] for row in place.wait_rows(1, "paid")] == [1]

    def test_a_worker_told_of_another_broker_does_not_start(self, redis: Any, tmp_path: Path) -> None:
        given = {"service": "billing", "broker": f"{redis.url}/0", "handlers": ["paid"]}
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "tests.bus.service:bus", "-b", "amqp://elsewhere", "worker"],
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "SERVICE": json.dumps(given), "LEDGER": str(tmp_path / "ledger")},
        )
        assert done.returncode != 0
        assert "CELERY_BROKER_URL in the environment is amqp://elsewhere" in done.stdout + done.stderr

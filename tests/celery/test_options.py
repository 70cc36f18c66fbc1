"""Transport options and broker URLs: which are accepted, and the errors for those that are refused."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection, Producer, Queue
from kombu.transport import TRANSPORT_ALIASES

import kombu_restante
from restante import Admin, InvalidInput
from restante.celery.options import Options, _logged
from restante.celery.transport import Transport
from restante.celery.urls import core_url
from restante.core.topics import matches
from tests.harness.processes import PythonProcess
from tests.harness.servers import RedisServer


class TestOptions:
    def test_the_defaults(self) -> None:
        options = Options.parse({})
        assert (options.visibility_timeout, options.delivery_limit, options.message_ttl) == (300.0, 20, None)
        assert (options.stream_maxlen, options.global_keyprefix, options.ssl) == (10_000, "", False)

    @pytest.mark.parametrize(
        ("given", "words"),
        [
            ({"visibilty_timeout": 5}, "did you mean visibility_timeout"),
            ({"delivery_limits": 5}, "did you mean delivery_limit"),
            ({"nonsense": 1}, "known are"),
            ({"visibility_timeout": 0}, "visibility_timeout"),
            ({"visibility_timeout": "long"}, "visibility_timeout"),
            ({"delivery_limit": 0}, "delivery_limit must be a whole number from 1"),
            ({"queue_order_strategy": "best"}, "round_robin, priority, sorted"),
            ({"unroutable": "ignore"}, "raise, warn, drop"),
        ],
    )
    def test_a_wrong_one_is_named_with_its_remedy(self, given: dict[str, Any], words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            Options.parse(given)

    def test_those_of_kombus_own_redis_transport_are_taken_and_said_to_do_nothing(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        _logged.clear()
        with caplog.at_level(logging.INFO, "restante"):
            Options.parse({"fanout_prefix": True, "fanout_patterns": True, "priority_steps": [0, 3], "max_retries": 3})
            Options.parse({"fanout_prefix": True})
        assert caplog.text.count("fanout_prefix") == 1
        assert "max_retries" not in caplog.text


class TestAddresses:
    @pytest.mark.parametrize(
        ("given", "options", "found"),
        [
            ("restante://", {}, "redis://localhost:6379"),
            ("restante://h:7000/3", {}, "redis://h:7000/3"),
            ("restante://u:p%40ss@h/0", {}, "redis://u:p%40ss@h/0"),
            ("restantes://h:7000/3", {}, "rediss://h:7000/3"),
            ("restante://[::1]:7000/3", {}, "redis://[::1]:7000/3"),
            ("restante://h/1", {"ssl": True}, "rediss://h/1"),
            ("restantes://h/1", {"ssl": {"ssl_cert_reqs": "none"}}, "rediss://h/1"),
            ("restante+socket:///run/r.sock?virtual_host=2", {}, "unix:///run/r.sock?db=2"),
            ("restante+sentinel://a:26379,b:26379/mymaster/0", {}, "redis+sentinel://a:26379,b:26379/mymaster/0"),
            ("restante://a:26379;restante://b", {"master_name": "m"}, "redis+sentinel://a:26379,b:26379/m"),
            ("restante+cluster://a:7000,b:7001", {}, "redis+cluster://a:7000,b:7001"),
            ("restante+embedded://some/folder", {}, "embedded://some/folder"),
        ],
    )
    def test_each_form_finds_its_server(self, given: str, options: dict[str, Any], found: str) -> None:
        transport = Transport(Connection(given, transport_options=options))
        assert core_url(transport.client, transport.options) == found

    def test_broker_use_ssl_reaches_the_client(self) -> None:
        transport = Transport(Connection("restante://h/1", ssl={"ssl_ca_certs": "/ca.pem"}))
        assert core_url(transport.client, transport.options) == "rediss://h/1"
        assert transport.broker.client.connection.endpoint.options["ssl_ca_certs"] == "/ca.pem"

    def test_redis_urls_work_with_the_transport_named(self, server: RedisServer) -> None:
        with Connection(f"{server.url}/0", transport="restante.celery.transport:Transport") as connection:
            Producer(connection).publish("x", routing_key="orders")
            assert Queue("orders")(connection.channel()).get().payload == "x"

    def test_a_url_that_asks_for_tls_keeps_it_with_the_transport_named_and_over_a_failover(self) -> None:
        named = Connection("rediss://h:7000/1", transport="restante.celery.transport:Transport")
        assert core_url(named, named.transport.options) == "rediss://h:7000/1"
        failing = Connection("restante://a:1/1;restantes://b:2/3")
        failing.switch(failing.alt[1])
        assert core_url(failing, failing.transport.options) == "rediss://b:2/3"

    def test_the_next_server_of_a_list_is_used_when_the_first_is_away(self, server: RedisServer) -> None:
        with Connection(f"restante://localhost:1;restante://127.0.0.1:{server.port}/0") as connection:
            with connection.channel() as channel:
                Producer(channel).publish("x", routing_key="orders", retry=True)
                assert Queue("orders")(channel).get().payload == "x"
            assert connection.port == server.port

    def test_the_embedded_server_needs_no_redis(self, tmp_path: Path) -> None:
        with Connection(f"restante+embedded://{tmp_path}/here") as connection:
            Producer(connection).publish("x", routing_key="orders")
            assert Queue("orders")(connection.channel()).get().payload == "x"
        assert (tmp_path / "here").is_dir()

    def test_kombu_knows_the_scheme_without_an_import_of_ours(self, server: RedisServer) -> None:
        assert TRANSPORT_ALIASES["restante"] == "restante.celery.transport:SchemeTransport"
        assert kombu_restante.SERIALIZER[2] == "application/vnd.restante+json"
        program = (
            "from celery import Celery\n"
            f"app = Celery(broker='restante://127.0.0.1:{server.port}/0')\n"
            "app.send_task('shop.add', args=(1, 2))\nprint('sent')\n"
        )
        with PythonProcess(program) as process:
            process.wait_line("sent")

    @pytest.mark.parametrize(
        "program",
        [
            "import kombu_restante\nimport kombu\nconnection = kombu.Connection(URL)",
            "from kombu import Connection, Queue\nconnection = Connection(URL)",
            "import kombu\nconnection = kombu.Connection(URL, transport='restante.celery.transport:Transport')",
        ],
        ids=["the import", "more of Kombu than its Connection", "the transport named"],
    )
    def test_a_bare_kombu_program_connects(self, server: RedisServer, program: str) -> None:
        url = f"URL = 'restante://127.0.0.1:{server.port}/0'"
        with PythonProcess(f"{url}\n{program}\nprint('connected', connection.connect().driver_name)") as process:
            process.wait_line("connected restante")

    def test_kombus_connection_alone_reads_no_plugins(self) -> None:
        """The reason why the guide names an import: without it a bare Kombu connection does not know the scheme."""
        program = "import kombu\ntry:\n    kombu.Connection('restante://')\nexcept KeyError as error:\n    print(error)"
        with PythonProcess(program) as process:
            process.wait_line("No such transport: restante")

    def test_a_server_that_is_not_there_is_a_connection_error(self) -> None:
        connection = Connection("restante://127.0.0.1:1/0", transport_options={"patience": 0.1})
        with pytest.raises(connection.connection_errors, match=r"cannot be reached"):
            connection.connect()


class TestPrefix:
    def test_two_applications_share_a_server_without_seeing_each_other(self, url: str, admin: Admin) -> None:
        for prefix in ("one:", "two:"):
            with Connection(url, transport_options={"global_keyprefix": prefix}) as connection:
                Producer(connection).publish(prefix, routing_key="orders")
        assert admin.queues() == ["one:orders", "two:orders"]
        with Connection(url, transport_options={"global_keyprefix": "two:"}) as connection:
            queue = Queue("orders")(connection.channel())
            assert queue.get().payload == "two:"
            assert queue.get() is None


@pytest.mark.parametrize(
    ("pattern", "topic", "fits"),
    [
        ("a", "a", True),
        ("a", "b", False),
        ("a.b", "a.b", True),
        ("a.b", "a", False),
        ("a", "a.b", False),
        ("*", "a", True),
        ("*", "a.b", False),
        ("*", "", False),
        ("a.*", "a.b", True),
        ("a.*", "a", False),
        ("*.b", "a.b", True),
        ("a.*.c", "a.b.c", True),
        ("a.*.c", "a.c", False),
        ("#", "", True),
        ("#", "a.b.c", True),
        ("a.#", "a", True),
        ("a.#", "a.b", True),
        ("a.#", "a.b.c", True),
        ("a.#", "ab", False),
        ("#.c", "c", True),
        ("#.c", "a.b.c", True),
        ("a.#.c", "a.c", True),
        ("a.#.c", "a.b.b.c", True),
        ("a.#.c", "a.b.d", False),
        ("#.#", "a", True),
        ("#.*", "a", True),
        ("#.*", "a.b", True),
        ("*.#.*", "a.b", True),
        ("*.#.*", "a", False),
        ("a.#.b.#.c", "a.x.b.b.y.c", True),
        ("a.b#", "a.b", False),
        ("a.*b", "a.xb", False),
    ],
)
def test_topics(pattern: str, topic: str, fits: bool) -> None:
    assert matches(pattern, topic) is fits


def test_a_hostile_pattern_takes_no_time() -> None:
    assert not matches(".".join(["#", "a"] * 200), ".".join(["a"] * 3000 + ["b"]))

"""The effect of every transport option on a real server; `test_options` tests what is refused."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import redis
from kombu import Connection, Consumer, Exchange, Producer, Queue

from restante import InvalidInput, UnsafeServer
from restante.celery.options import Options
from restante.celery.urls import core_url
from tests.celery.conftest import broker_url
from tests.celery.workers import wait_for
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import spawn
from tests.harness.servers import HOST, RedisServer, call, debian_binary, free_port

Connect = Callable[..., Connection]
PASSWORD = "p@ss word"

#: Options whose effect is tested elsewhere, and where.
ELSEWHERE = {
    "visibility_timeout": "test_faults.TestLeases",
    "delivery_limit": "test_verdicts",
    "message_ttl": "test_faults.TestDelays",
    "global_keyprefix": "test_options.TestPrefix",
    "unroutable": "test_kombu.TestExchanges",
    "deadletter_queue": "test_kombu.TestExchanges",
    "socket_timeout": "test_workers.TestOutages",
}
HERE = {
    "stream_maxlen",
    "queue_order_strategy",
    "patience",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_keepalive_options",
    "client_name",
    "ssl",
    "master_name",
    "sentinel_kwargs",
    "allow_eviction",
}


def test_every_option_meets_a_server_in_some_test() -> None:
    assert {field.name for field in fields(Options)} == HERE | set(ELSEWHERE)


def round_trip(connection: Connection) -> None:
    """Publishes one message and receives it."""
    Producer(connection).publish("x", routing_key="orders")
    message = Queue("orders")(connection.channel()).get()
    assert message.payload == "x"
    message.ack()


def socket_option(connection: Connection, level: int, name: int) -> int:
    """A socket option of a connection that was in use and is idle now."""
    round_trip(connection)
    link = connection.transport.broker.client.connection.pool.idle[None][0]
    with socket.socket(fileno=os.dup(link.fileno())) as same:
        return same.getsockopt(level, name)


class TestSockets:
    def test_client_name_is_in_the_list_of_clients(self, connect: Connect, server: RedisServer) -> None:
        connection = connect(client_name="shop-worker")
        round_trip(connection)
        assert b" name=shop-worker " in call(server.client(), "CLIENT", "LIST")

    def test_socket_keepalive_is_on_unless_it_is_turned_off(self, connect: Connect) -> None:
        assert socket_option(connect(), socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert socket_option(connect(socket_keepalive=False), socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0

    def test_socket_keepalive_options_reach_the_socket(self, connect: Connect) -> None:
        connection = connect(socket_keepalive=True, socket_keepalive_options={socket.TCP_KEEPIDLE: 37})
        assert socket_option(connection, socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 37

    def test_socket_connect_timeout_ends_the_wait_for_a_server_that_says_nothing(self) -> None:
        with socket.create_server((HOST, 0)) as silent:
            options = {"socket_connect_timeout": 0.2, "socket_timeout": 600.0, "patience": 0.0}
            connection = Connection(f"restante://{HOST}:{silent.getsockname()[1]}/0", transport_options=options)
            with pytest.raises(connection.connection_errors, match="cannot be reached"):
                connection.connect()
            assert connection.transport.broker.client.connection.settings.connect_timeout == 0.2
            connection.release()

    def test_patience_decides_whether_a_call_outlasts_an_outage(self) -> None:
        with RedisServer(appendonly="always") as server:
            eager = Connection(broker_url(server), transport_options={"patience": 0.0})
            patient = Connection(broker_url(server), transport_options={"patience": PATIENCE})
            with eager, patient:
                round_trip(eager)
                round_trip(patient)
                server.kill9()
                with pytest.raises(eager.connection_errors):
                    Producer(eager).publish("x", routing_key="orders", retry=False)
                back = threading.Timer(0.5, server.restart)
                back.start()
                round_trip(patient)
                back.join()


class TestServers:
    def test_stream_maxlen_bounds_a_broadcast(self, connect: Connect, server: RedisServer) -> None:
        lengths = {}
        for maxlen in (1, 10_000):
            connection = connect(stream_maxlen=maxlen)
            exchange = Exchange(f"news-{maxlen}", "fanout", durable=False)
            queue = Queue(f"listener-{maxlen}", exchange, auto_delete=True)(connection.channel())
            queue.declare()
            producer = Producer(connection, exchange)
            for number in range(500):
                producer.publish(number)
            (stream,) = call(server.client(), "KEYS", f"*news-{maxlen}*broadcast*")
            lengths[maxlen] = call(server.client(), "XLEN", stream)
        # The server trims whole nodes of a stream, which hold up to a hundred entries.
        assert lengths[1] <= 200
        assert lengths[10_000] == 500

    @pytest.mark.parametrize(
        ("strategy", "order"), [("priority", "bbaacc"), ("sorted", "aabbcc"), ("round_robin", None)]
    )
    def test_queue_order_strategy_is_the_order_of_looking(
        self, connect: Connect, strategy: str, order: str | None
    ) -> None:
        connection = connect(queue_order_strategy=strategy)
        producer = Producer(connection)
        for name in "abcabc":
            producer.publish(name, routing_key=name)
        seen: list[str] = []

        def take(body: Any, message: Any) -> None:
            seen.append(body)
            message.ack()

        with Consumer(connection.channel(), [Queue(name) for name in "bac"], callbacks=[take], prefetch_count=1):
            while len(seen) < 6:
                connection.drain_events(timeout=PATIENCE)
        assert sorted(seen) == list("aabbcc")
        if order is None:
            assert sorted(seen[:3]) == list("abc")  # each in its turn
        else:
            assert "".join(seen) == order

    def test_a_server_that_may_evict_is_refused_unless_allowed(self) -> None:
        config = {"maxmemory-policy": "allkeys-lru"}
        with RedisServer(maxmemory=200_000_000, config=config) as server:
            with Connection(broker_url(server)) as connection, pytest.raises(UnsafeServer, match="allkeys-lru"):
                connection.connect()
            with Connection(broker_url(server), transport_options={"allow_eviction": True}) as connection:
                round_trip(connection)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A key and a self-signed certificate for this machine."""
    folder = tmp_path_factory.mktemp("tls")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        [
            "openssl",
            "req",
            "-x509",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            key,
            "-out",
            cert,
            "-days",
            "2",
            "-subj",
            "/CN=localhost",
            "-addext",
            f"subjectAltName=IP:{HOST},DNS:localhost",
        ],
        check=True,
        capture_output=True,
    )
    return str(key), str(cert)


@pytest.fixture(scope="module")
def tls(certificate: tuple[str, str]) -> Iterator[int]:
    """The port on which a server speaks TLS."""
    key, cert = certificate
    port = free_port()
    config = {
        "tls-port": str(port),
        "tls-key-file": key,
        "tls-cert-file": cert,
        "tls-ca-cert-file": cert,
        "tls-auth-clients": "no",
    }
    with RedisServer(debian_binary(), config=config):
        yield port


class TestTls:
    def test_a_connection_is_encrypted_and_the_certificate_checked(
        self, tls: int, certificate: tuple[str, str]
    ) -> None:
        trusted = {"ssl_ca_certs": certificate[1]}
        forms: tuple[tuple[str, dict[str, Any]], ...] = (
            (f"restantes://{HOST}:{tls}/0", {"transport_options": {"ssl": trusted}}),
            (f"restante://{HOST}:{tls}/0", {"transport_options": {"ssl": trusted}}),
            (f"restante://{HOST}:{tls}/0", {"ssl": trusted}),  # broker_use_ssl
            (f"restantes://{HOST}:{tls}/0?ssl_ca_certs={certificate[1]}", {}),
            (f"restante://{HOST}:{tls}/0", {"transport_options": {"ssl": {"ssl_cert_reqs": "none"}}}),
        )
        for url, told in forms:
            with Connection(url, **told) as connection:
                round_trip(connection)
                link = connection.transport.broker.client.connection.pool.idle[None][0]
                assert link.connection._sock.version().startswith("TLS")
        for options in ({"ssl": True, "patience": 0.0}, {"patience": 0.0}):
            with (
                Connection(f"restante://{HOST}:{tls}/0", transport_options=options) as connection,
                pytest.raises(connection.connection_errors),
            ):
                connection.connect()

    def test_a_consumer_that_sleeps_is_woken_through_tls(self, tls: int, certificate: tuple[str, str]) -> None:
        url, trusted = f"restantes://{HOST}:{tls}/0", {"ssl": {"ssl_ca_certs": certificate[1]}}
        seen: list[Any] = []

        def publish() -> None:
            with Connection(url, transport_options={**trusted, "client_name": "publisher"}) as other:
                Producer(other).publish("late", routing_key="sleepy")

        with Connection(url, transport_options=trusted) as connection:
            queue = Queue("sleepy")(connection.channel())
            with Consumer(connection.channel(), [queue], callbacks=[lambda body, _: seen.append(body)], no_ack=True):
                with pytest.raises(TimeoutError):
                    connection.drain_events(timeout=0.5)
                later = threading.Timer(0.3, publish)
                later.start()
                connection.drain_events(timeout=PATIENCE)
                later.join()
        assert seen == ["late"]

    @pytest.mark.parametrize(
        ("given", "words"),
        [({"ca_certs": "x"}, "did you mean ssl_ca_certs"), ({"nonsense": 1}, "known are"), ("yes", "must be a dict")],
    )
    def test_what_the_driver_does_not_know_is_refused(self, given: Any, words: str) -> None:
        with pytest.raises(InvalidInput, match=words):
            Options.parse({"ssl": given})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a sentinel with a password, which watches a server with another."""
    folder, port = tmp_path_factory.mktemp("sentinel"), free_port()
    with RedisServer(debian_binary()) as master:
        call(master.client(), "ACL", "SETUSER", "shop", "on", ">secret", "~*", "&*", "+@all")
        config = folder / "sentinel.conf"
        config.write_text(
            f'port {port}\nbind {HOST}\nrequirepass "{PASSWORD}"\nsentinel monitor mymaster {HOST} {master.port} 1\n'
        )
        child = spawn([debian_binary(), config, "--sentinel", "--logfile", folder / "sentinel.log"])
        try:
            with contextlib.closing(redis.Redis(port=port, password=PASSWORD)) as sentinel:

                def answers() -> bool:
                    try:
                        return bool(call(sentinel, "INFO", "server")["process_id"] == child.pid)
                    except redis.ConnectionError:
                        return False

                wait_for(answers, PATIENCE, lambda: Path(folder / "sentinel.log").read_text())
            yield port
        finally:
            child.kill()
            child.wait()


class TestSentinels:
    def test_sentinel_kwargs_log_in_at_the_sentinels_alone(self, guarded: int) -> None:
        login = {"sentinel_kwargs": {"password": PASSWORD}}
        for url, options in (
            (f"restante+sentinel://shop:secret@{HOST}:{guarded}/mymaster/0", login),
            (f"restante://shop:secret@{HOST}:{guarded}/0", {**login, "master_name": "mymaster"}),
            (f"restante+sentinel://shop:secret@{HOST}:{guarded}/0", {**login, "master_name": "mymaster"}),
            (f"restante+sentinel://{HOST}:{guarded}/mymaster/0?sentinel_password={PASSWORD}", {}),
        ):
            with Connection(url, transport_options=options) as connection:
                round_trip(connection)

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({}, "asks for a login.*sentinel_password"),
            ({"sentinel_kwargs": {"password": "wrong"}}, "refused the login.*sentinel_password"),
        ],
    )
    def test_without_the_right_password_the_login_is_named(
        self, guarded: int, options: dict[str, Any], words: str
    ) -> None:
        told = {**options, "patience": 0.0}
        with (
            Connection(f"restante+sentinel://{HOST}:{guarded}/mymaster/0", transport_options=told) as connection,
            pytest.raises(connection.connection_errors, match=words),
        ):
            connection.connect()

    @pytest.mark.parametrize(
        ("url", "options", "words"),
        [
            ("restante://h/0", {"sentinel_kwargs": {"password": "x"}}, "needs sentinels"),
            ("restante+cluster://h", {"master_name": "m"}, "leave it out"),
            ("restante+socket:///r.sock", {"ssl": True}, "no meaning"),
            ("restante+sentinel://h/m", {"sentinel_kwargs": {"pasword": "x"}}, "did you mean password"),
            ("restante://h", {"client_name": "two words"}, "without spaces"),
            ("restante://h", {"socket_timeout": "long"}, "socket_timeout"),
            ("restante://h", {"queue_expires": 60}, "x-expires"),
            ("restante://h", {"credential_provider": "x"}, "broker URL"),
        ],
    )
    def test_what_could_have_no_effect_is_refused(self, url: str, options: dict[str, Any], words: str) -> None:
        connection = Connection(url, transport_options=options)
        with pytest.raises(InvalidInput, match=words):
            core_url(connection, connection.transport.options)

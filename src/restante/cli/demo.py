"""Runs a sample shop on an embedded server: orders lead to payments and emails, reports are slow, some handlers fail.

It uses every way into Restante: native consumers, a Celery worker, two services on the event bus, and Spark, which
reads the journal for the Insights page. The parent process runs Redis, the HTTP server with its sweeper and dashboard,
and the live table. Each role is a child process.

On failure a child that dies is started again. Children exit when their standard input closes, so none outlives the
parent, even if it is killed.
"""

from __future__ import annotations

import importlib.util
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import restante
from restante import Admin, Client, Consumer, JournalEvent, LeasedMessage, RestanteError, Sweeper, Unavailable
from restante.cli.live_table import LiveTable, watch
from restante.cli.session import Session, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.embedded import answers, socket_path
from restante.core.journal_reader import JournalReader
from restante.core.settings import DEFAULT_HTTP_PORT
from restante.core.task import MessageTask

#: The settings of each queue. Short leases and retries, so that every state appears within seconds.
QUEUES: dict[str, dict[str, Any]] = {
    "orders": {"lease": 5, "max_attempts": 3, "retry": restante.exponential(2, cap=20), "keep_done": 100},
    "payments": {"lease": 3, "max_attempts": 4, "retry": restante.fixed(1, 3, 8)},
    "emails": {"lease": 5, "max_attempts": 3, "retry": restante.exponential(1, cap=10), "keep_done": 200},
    "reports": {"lease": 4, "max_attempts": 2, "retry": restante.fixed(3), "keep_done": 20},
}
#: Orders per second; each becomes about three messages.
ORDERS_PER_SECOND = 12.0
REPORTS = ("sales", "stock", "refunds", "visits", "costs", "ratings", "search", "returns")
#: Dead messages of a queue at which the shop's operator replays them.
REPLAY_AT = 40
#: Seconds after which Spark starts, so that it does not delay the start of the shop.
INSIGHTS_AFTER = 6.0
#: Seconds between two reports of Spark; the shortest demo, in seconds, for which Spark is started.
INSIGHTS_EVERY, LEAST_INSIGHTS = 20.0, 30.0
#: Seconds between two checks of the children.
CHECK_EVERY = 0.25
#: Seconds for children to release their messages, and for the server to write its files and stop.
STOP_TIMEOUT, SERVER_TIMEOUT = 3.0, 10.0
#: Share of payments during which the process is killed, as if its machine failed.
CRASH_SHARE = 0.004


class CardDeclined(Exception):
    """The bank declines the card; a retry does not help."""


class MailboxBusy(Exception):
    """The mail server asks to come back later."""


# -- the roles, each a process ---------------------------------------------------------------------------------------


def produce(post: Client, stop: threading.Event) -> None:
    """Sends orders, and tasks that draw reports."""
    orders, draw = post.queue("orders"), drawing(post)
    number = 0
    while not stop.wait(random.expovariate(ORDERS_PER_SECOND)):
        number += 1
        valued = number % 7 == 0
        order = {"order": number, "items": random.randint(1, 9), "total": round(random.uniform(5, 400), 2)}
        orders.send(
            order,
            kind="order.placed",
            priority=200 if valued else 0,
            headers={"customer": f"c{number % 97}"},
            delay=random.uniform(3, 15) if number % 10 == 2 else 0,
        )
        for name in REPORTS if number == 1 else random.sample(REPORTS, 1) if number % 8 == 0 else ():
            draw.send(name)


def sell(post: Client) -> list[restante.Queue]:
    """Handles orders: quick; each sends a payment."""
    orders, payments = post.queue("orders"), post.queue("payments")

    @orders.handler
    def place(message: LeasedMessage) -> None:
        time.sleep(random.uniform(0.005, 0.06))
        if random.random() < 0.04:
            raise ConnectionError("the stock service does not answer")
        number = message.payload["order"]
        payments.send(
            message.payload,
            kind="payment.due",
            unique=f"payment-{message.id}",
            priority=message.priority,
            headers={"order": str(number)},
        )

    return [orders]


def charge(post: Client) -> list[restante.Queue]:
    """Handles payments: some are declined for good, some time out, and sometimes the process is killed."""
    payments, emails = post.queue("payments"), post.queue("emails")
    publish = _publisher(post.url)

    @payments.handler
    def pay(message: LeasedMessage) -> None:
        time.sleep(random.uniform(0.02, 0.15))
        number = message.payload["order"]
        if random.random() < CRASH_SHARE:
            os.kill(os.getpid(), signal.SIGKILL)
        if number % 25 == 3:
            message.bury(error=CardDeclined(f"card of order {number} declined"))
            publish("shop.order.declined", {"order": number}, f"declined-{message.id}")
            return
        if number % 9 == 5 and random.random() < 0.9:
            raise TimeoutError("the bank took more than its time")
        delay = random.uniform(3, 20) if random.random() < 0.4 else 0
        emails.send({"to": message.headers.get("order"), "text": "thank you"}, kind="email.receipt", delay=delay)
        publish("shop.order.paid", {"order": number, "total": message.payload["total"]}, f"paid-{message.id}")

    return [payments]


def _publisher(url: str) -> Callable[[str, Any, str], None]:
    """Returns a function that publishes events, or does nothing without the event bus."""
    if not _has_bus():
        return lambda topic, data, name: None
    from restante.bus import BusClient

    client = BusClient(url, source="payments")

    def publish(topic: str, data: Any, id: str) -> None:
        client.publish(topic, data, id=id)

    return publish


def _has_bus() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("celery", "pydantic"))


def mail(post: Client) -> list[restante.Queue]:
    """Handles emails: sometimes the mailbox is busy."""
    emails = post.queue("emails")

    @emails.handler
    def deliver(message: LeasedMessage) -> None:
        time.sleep(random.uniform(0.01, 0.1))
        if random.random() < 0.08:
            raise MailboxBusy("450 try again later")

    return [emails]


def drawing(post: Client) -> MessageTask[[str], dict[str, int]]:
    """The task that draws a report: slow, so some wait; it notes its progress and has a result."""
    reports = post.queue("reports")

    @reports.task(unique="report")
    def draw(message: LeasedMessage, report: str) -> dict[str, int]:
        pages = random.randint(2, 9)
        for page in range(pages):
            message.progress(page / pages, f"drawing page {page + 1} of {pages}")
            time.sleep(random.uniform(0.3, 0.6))
            if random.random() < 0.05:
                raise MemoryError(f"page {page + 1} of the report {report} is too large")
        return {"pages": pages, "rows": random.randint(40, 60) * pages}

    return draw


def report(post: Client) -> list[restante.Queue]:
    """Runs the task that draws reports."""
    drawing(post)
    return [post.queue("reports")]


def draw_thumbnails(url: str, stop: threading.Event) -> None:
    """Runs a Celery worker on the same server, and a thread that uploads pictures for it."""
    from restante.cli.shop_tasks import app, upload

    app.conf.broker_url = url.replace("unix://", "restante+socket://")
    threading.Thread(target=upload, args=(stop,), daemon=True).start()
    # Only a signal stops it; `end` sends one.
    app.worker_main(["worker", "--pool=threads", "--concurrency=2", "--loglevel=ERROR", "--without-gossip"])


def serve(role: str, url: str, stop: threading.Event) -> None:
    """Runs a service on the event bus, which is an ordinary Celery worker."""
    from restante.cli.shop_events import SERVICES, ask

    bus = SERVICES[role](url)
    if role == "warehouse":
        threading.Thread(target=ask, args=(url, stop), daemon=True).start()
    bus.conf.worker_hijack_root_logger = False
    bus.worker_main(["worker", "--pool=threads", "--concurrency=2", "--loglevel=ERROR", "--without-gossip"])


def refresh_insights(url: str, lake: Path, stop: threading.Event) -> None:
    """Runs Spark, which reads the journals into a lake and writes its report, repeatedly."""
    # Before the slow imports: from now on the journals keep the lines that Spark will read.
    with restante.connect(url) as post:
        for name in Admin(post).queues():
            JournalReader(post).claim(name, "pipeline")
    from restante.spark.lake import Lake
    from restante.spark.progress import RunProgress
    from restante.spark.registration import Registration

    status = RunProgress(Lake(str(lake)))
    with Registration(url), status.running("waiting for the shop to open", report=True):
        if stop.wait(INSIGHTS_AFTER):
            return
        status.tell("starting Spark")
        from restante.spark.pipeline import Pipeline, PipelineOptions
        from restante.spark.report import write
        from restante.spark.session import session as start_spark

        spark = start_spark(master="local[1]")
        while not stop.is_set():
            options = PipelineOptions(url=url, lake=str(lake))
            Pipeline(spark, options, status=status).run_once(stop=stop.is_set)
            if not stop.is_set():
                status.tell("report")
                write(str(lake), lake / "report.html", title="The sample shop")
                status.tell("waiting for more")
            stop.wait(INSIGHTS_EVERY)


#: Roles that are services on the bus; `shop_events`, which needs Celery, implements them.
SERVICES = ("warehouse", "loyalty")
#: Role → function that creates its queues, and its concurrency.
CONSUMERS = {"sell": (sell, 2), "charge": (charge, 3), "mail": (mail, 3), "report": (report, 1)}


def roles(insights: bool) -> list[str]:
    """The roles for which the packages and programs are installed."""
    names = ["produce", *CONSUMERS]
    if importlib.util.find_spec("celery") is not None:
        names.append("thumbnails")
    if _has_bus():
        names += SERVICES
    if (
        insights
        and importlib.util.find_spec("pyspark") is not None
        and (shutil.which("java") or "JAVA_HOME" in os.environ)
    ):
        names.append("insights")
    return names


def run_role(role: str, url: str, lake: Path) -> None:
    """Runs one role in a child process until the parent ends."""
    stop = threading.Event()
    consumer: Consumer | None = None

    def end() -> None:
        stop.set()
        if consumer is not None:
            consumer.stop()
        if role in ("thumbnails", *SERVICES):
            os.kill(os.getpid(), signal.SIGTERM)

    def until_parent_ends() -> None:
        sys.stdin.buffer.read()
        end()
        # The server ends with the parent, so a handler that still waits for it is of no use.
        time.sleep(STOP_TIMEOUT)
        os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=until_parent_ends, daemon=True).start()
    if role == "thumbnails":
        return draw_thumbnails(url, stop)
    if role in SERVICES:
        return serve(role, url, stop)
    if role == "insights":
        return refresh_insights(url, lake, stop)
    with restante.connect(url, consumer=f"{role}:{os.getpid()}") as post:
        if role == "produce":
            while not stop.is_set():
                try:
                    produce(post, stop)
                except RestanteError:
                    stop.wait(0.5)
            return None
        make, concurrency = CONSUMERS[role]
        consumer = Consumer(make(post), concurrency=concurrency, prefetch=5, grace=STOP_TIMEOUT / 2)
        consumer.run()
        return None


# -- the parent ------------------------------------------------------------------------------------------------------


class Supervisor:
    """Starts the child processes, restarts those that die, and ends them."""

    def __init__(self, url: str, lake: Path, role_names: Sequence[str]) -> None:
        self._url = url
        self._lake = lake
        self._roles = role_names
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="restante-demo", daemon=True)
        self.crashes = 0

    def start(self) -> None:
        for role in self._roles:
            self._children[role] = self._spawn(role)
        self._thread.start()

    def _spawn(self, role: str) -> subprocess.Popen[bytes]:
        # A separate process group: Ctrl-C only reaches the parent, which then ends the children.
        return subprocess.Popen(
            [sys.executable, "-m", "restante.cli.demo", role, self._url, str(self._lake)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    def _supervise(self) -> None:
        while not self._ending.wait(CHECK_EVERY):
            for role, child in list(self._children.items()):
                if child.poll() is not None:
                    if role == "insights":
                        # The shop works without Spark, which must not be restarted in a loop.
                        _close_input(self._children.pop(role))
                        continue
                    self.crashes += 1
                    _close_input(child)
                    self._children[role] = self._spawn(role)

    def end(self) -> None:
        """Closes the children's standard input, waits, and kills those that remain."""
        self._ending.set()
        self._thread.join()
        children = list(self._children.values())
        for child in children:
            _close_input(child)
        deadline = time.monotonic() + STOP_TIMEOUT
        for child in children:
            try:
                child.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _close_input(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    child.stdin.close()


def replay_dead(admin: Admin, stop: threading.Event) -> None:
    """Replays the dead messages of queues that have many."""
    while not stop.wait(2.0):
        try:
            for row in admin.all_counts():
                if row.dead >= REPLAY_AT:
                    admin.replay(row.queue)
        except RestanteError:
            pass  # the table shows that the server is away


def run(session: Session, seconds: float | None, port: int | None, *, insights: bool) -> None:
    """Runs the whole demo. It ignores RESTANTE_URL, so that it does not run on a production server."""
    if session.url is not None:
        raise WrongUsage("the demo starts its own server: leave out --url; --directory chooses its directory")
    kept = session.directory is not None
    directory = Path(session.directory or tempfile.mkdtemp(prefix="restante-demo-")).absolute()
    stop = threading.Event()
    with stopping_by_signal(stop.set):
        try:
            post = restante.connect(directory=directory)
            try:
                role_names = roles(insights and (seconds is None or seconds >= LEAST_INSIGHTS))
                _open_shop(session, post, directory, stop, seconds, port, role_names)
            finally:
                post.close()
                wait_for_server(directory)
        finally:
            if not kept:
                shutil.rmtree(directory, ignore_errors=True)


@contextmanager
def _http_server(url: str, lake: Path, port: int | None) -> Iterator[str]:
    """Runs the HTTP server with its sweeper, or only a sweeper if the server is not installed."""
    try:
        from restante.server import ServerSettings, Serving
    except ModuleNotFoundError:
        with restante.connect(url) as post:
            sweeper = Sweeper(post)
            sweeping = sweeper.start()
            yield "the dashboard needs restante[server]"
            sweeper.stop()
            sweeping.join(STOP_TIMEOUT)
        return
    serving = Serving(url, ServerSettings(port=DEFAULT_HTTP_PORT if port is None else port, lake=lake))
    try:
        serving.bind()
    except Unavailable:
        if port is not None:
            raise
        serving = Serving(url, ServerSettings(port=0, lake=lake))
    with serving:
        yield f"dashboard: {serving.address}"


def _open_shop(
    session: Session,
    post: Client,
    directory: Path,
    stop: threading.Event,
    seconds: float | None,
    port: int | None,
    role_names: Sequence[str],
) -> None:
    admin = Admin(post, operator="shop")
    for name, options in QUEUES.items():
        admin.configure(name, **options)
    if _has_bus():
        from restante.cli import shop_events

        # Before the first publish: events without a subscription are kept apart, and the shop does not use them.
        for make in shop_events.SERVICES.values():
            bus = make(post.url)
            bus.declare()
            bus.close()
    lake = directory / "lake"
    children = Supervisor(post.url, lake, role_names)
    operator = threading.Thread(target=replay_dead, args=(admin, stop), daemon=True)
    with _http_server(post.url, lake, port) as address:
        session.note(address)
        hint = f"{address}      more: restante --directory {directory} ls · show      Ctrl-C to stop"
        try:
            children.start()
            operator.start()
            watch(session, LiveTable(admin, "Restante: a sample shop", hint), stop, seconds=seconds)
        finally:
            stop.set()
            children.end()
            operator.join(STOP_TIMEOUT)
    total = {event: sum(row.totals[event.value] for row in admin.all_counts()) for event in JournalEvent}
    session.note(
        f"closed: {total[JournalEvent.SENT]:,} sent, {total[JournalEvent.ACKED]:,} acked, "
        f"{total[JournalEvent.NACKED]:,} nacked, {total[JournalEvent.BURIED]:,} buried, "
        f"{total[JournalEvent.EXPIRED]:,} expired, {children.crashes} processes died"
    )


def wait_for_server(directory: Path) -> None:
    """Waits until the embedded server of a directory has stopped, or for SERVER_TIMEOUT if others use it."""
    deadline = time.monotonic() + SERVER_TIMEOUT
    while answers(socket_path(directory)) and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    run_role(sys.argv[1], sys.argv[2], Path(sys.argv[3]))

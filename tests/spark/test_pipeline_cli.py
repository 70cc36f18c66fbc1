"""`restante pipeline …` as a user types it: what it says, in words and in JSON, and the code it ends with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import restante
from restante import Admin, Client, State
from restante.spark.lake import Lake
from restante.spark.pipeline import Pipeline, PipelineOptions
from tests.cli.conftest import Cli, Ran
from tests.faults.rows import wait_until
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import CHECKOUT
from tests.harness.servers import RedisServer, call
from tests.spark.lake_proof import assert_every_line_once, assert_tables_follow, by_arrow, copied, written


@dataclass
class Shop:
    """A server, its lake, and the command that filled it."""

    server: RedisServer
    post: Client
    cli: Cli
    filled: Ran

    @property
    def lake(self) -> Path:
        return self.cli.cwd / "lake"

    def __call__(self, command: str, *words: str, lake: Path | None = None) -> Ran:
        """A command of the pipeline, in this process and its Spark."""
        return self.cli.inside("pipeline", command, "--lake", str(lake or self.lake), *words)


@pytest.fixture(scope="module")
def kept(spark: SparkSession) -> Iterator[None]:
    """Commands end the Spark they started; this one is shared and goes on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SparkSession, "stop", lambda self: None)
        yield


@pytest.fixture(scope="module")
def shop(kept: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    with RedisServer() as server, restante.connect(server.url) as post:
        orders = post.queue("orders")
        orders.send_many([{"n": n} for n in range(12)], kind="order")
        orders.ack_many(orders.receive_many(3))
        orders.bury_many(orders.receive_many(4), error=ValueError("no"))
        orders.bury_many(orders.receive_many(2), error=KeyError("price"))
        cli = Cli(server.url, tmp_path_factory.mktemp("shop"))
        filled = cli.inside("pipeline", "run", "--lake", "lake", "--batch-rows", "10", "--json")
        yield Shop(server, post, cli, filled)
        cli.close()


class TestRun:
    def test_it_tells_what_it_did_as_json(self, shop: Shop) -> None:
        lines = len(written(shop.post))
        assert shop.filled.code == 0, shop.filled.err
        told = shop.filled.json
        assert (told["lake"], told["rows"], told["batches"]) == ("lake", lines, -(-lines // 10))
        assert len(told["dates"]) == 1
        assert set(told["seconds"]) == {"bronze", "silver and gold", "compact", "retention"}

    def test_it_tells_what_it_did_in_words(self, shop: Shop) -> None:
        ran = shop("run")
        assert ran.code == 0
        for text in ("bronze", "0 rows in 0 batches", "nothing new"):
            assert text in ran.out

    def test_a_lake_in_use_is_refused(self, shop: Shop) -> None:
        other = Lake(str(shop.lake))
        other.lock()
        try:
            ran = shop("run", "--json")
        finally:
            other.unlock()
        assert ran.code == 4
        assert json.loads(ran.err)["error"] == "InUse"

    def test_a_server_that_is_away_ends_it_before_spark_starts(self, shop: Shop) -> None:
        ran = shop("run", "--url", "redis://127.0.0.1:1")
        assert ran.code == 3
        assert "cannot be reached" in ran.error

    def test_lost_lines_end_it_and_are_passed_over_when_allowed(
        self, shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Pipeline, "refresh", lambda self, summary: None)  # lines are enough here
        with RedisServer() as server, restante.connect(server.url) as post:
            queue = post.queue("orders", journal_keep=1000, journal_cap=1000)
            queue.send(1)
            words = ("--url", server.url, "--json")
            assert shop("run", *words, lake=tmp_path).json["rows"] == 2
            for _ in range(3):
                queue.send_many([1] * 1000)
            ran = shop("run", *words, lake=tmp_path)
            assert (ran.code, ran.out) == (4, "")
            told = json.loads(ran.err)
            assert told["error"] == "JournalLost"
            assert "orders was trimmed to line" in told["message"]
            lost = shop("status", *words, lake=tmp_path).json["queues"]["orders"]["lost"]
            assert lost > 0
            assert shop("run", *words, "--allow-loss", lake=tmp_path).json["rows"] == 3002 - 2 - lost

    def test_control_c_leaves_a_good_lake_and_nobody(self, spark: SparkSession, post: Client, tmp_path: Path) -> None:
        queue = post.queue("orders")
        queue.send_many(list(range(1000)))
        cli, lake = Cli(post.url, tmp_path), tmp_path / "lake"
        try:
            words = ("--batch-rows", "100", "--compact-from", "2")
            running = cli.start("pipeline", "run", "--lake", "lake", *words)
            wait_until(lambda: len(Lake(str(lake)).batches()) >= 2, PATIENCE, "two batches")
            running.interrupt()
            assert running.wait(PATIENCE) == 0, running.output
            assert "rows in" in running.output
            cli.leaves_nobody()
        finally:
            cli.close()
        ended = Lake(str(lake)).state()
        assert ended.last_run["rows"] > 0
        if set(by_arrow(lake)) != set(written(post)):  # the rest of what was sent
            Pipeline(spark, PipelineOptions(url=post.url, lake=str(lake), batch_rows=5000)).run_once()
        assert_every_line_once(spark, lake, written(post))
        assert_tables_follow(lake)


class TestStatus:
    def test_it_tells_lag_and_sizes(self, shop: Shop) -> None:
        lines = len(written(shop.post))
        told = shop("status", "--json").json
        assert told["queues"] == {"orders": {"last": lines, "read": lines, "lag": 0, "lost": 0, "begins": 1}}
        assert told["tables"]["bronze"]["rows"] == lines
        assert told["tables"]["silver/messages"]["rows"] == 12
        assert (told["folded"], told["too_late"], told["reader"]) == (shop.filled.json["batches"] - 1, 0, "pipeline")
        words = shop("status")
        assert words.code == 0
        for text in ("orders", "silver/messages", "gold/latency", "last run", "too late 0"):
            assert text in words.out

    def test_lines_that_nobody_took_yet_are_lag(self, shop: Shop) -> None:
        told = shop("status", "--reader", "somebody", "--json").json
        assert told["queues"]["orders"]["lag"] == len(written(shop.post))


class TestReport:
    def test_it_writes_one_page(self, shop: Shop) -> None:
        ran = shop("report", "--out", "page.html", "--json")
        assert ran.code == 0, ran.err
        page = shop.cli.cwd / "page.html"
        assert ran.json["bytes"] == page.stat().st_size
        assert (ran.json["queues"], ran.json["adds_up"]) == (1, True)
        assert "<html" in page.read_text()[:500].lower()
        words = shop("report", "--out", "page.html")
        assert words.code == 0
        assert "page.html" in words.err

    def test_a_lake_without_tables_gives_a_page_too(self, shop: Shop, tmp_path: Path) -> None:
        ran = shop("report", "--out", "empty.html", "--json", lake=tmp_path)
        assert (ran.code, ran.json["queues"]) == (0, 0)
        assert (shop.cli.cwd / "empty.html").exists()


class TestAudit:
    def test_where_all_adds_up_it_ends_with_zero(self, shop: Shop) -> None:
        ran = shop("audit")
        assert ran.code == 0
        assert "everything adds up" in ran.err
        told = shop("audit", "--offline", "--json")
        assert (told.code, told.json["adds_up"], told.json["troubles"]) == (0, True, [])
        (window,) = told.json["windows"]
        assert (window["sent"], window["acked"], window["dead"], window["waiting"]) == (12, 3, 6, 3)

    def test_a_message_that_is_missing_is_named_and_ends_it_with_five(self, shop: Shop) -> None:
        client, key = shop.server.client(), "restante:{orders}:dead"
        ((id, score),) = call(client, "ZRANGE", key, 0, 0, "WITHSCORES")
        call(client, "ZREM", key, id)
        try:
            ran, words = shop("audit", "--json"), shop("audit")
        finally:
            call(client, "ZADD", key, score, id)
        assert (ran.code, words.code) == (5, 5)
        (one,) = ran.json["troubles"]
        assert (one["message_id"], one["what"], one["journal_state"]) == (id.decode(), "missing", "dead")
        assert f"missing orders {id.decode()}: journal dead, Redis –; last buried" in words.out
        assert "1 messages do not add up" in words.err

    def test_a_lake_without_tables_is_told_with_the_remedy(self, shop: Shop, tmp_path: Path) -> None:
        ran = shop("audit", lake=tmp_path)
        assert ran.code == 1
        assert "restante pipeline run" in ran.error


class TestReplay:
    KEYS = ("--where", "error_class = 'KeyError'")

    @pytest.fixture
    def lake(self, shop: Shop, tmp_path: Path) -> Path:
        return copied(shop.lake, tmp_path / "lake")

    def test_a_dry_run_shows_the_plan_and_sends_nothing(self, shop: Shop, lake: Path) -> None:
        before = Admin(shop.post).counts("orders").journal_last
        ran = shop("replay", *self.KEYS, "--dry-run", lake=lake)
        assert ran.code == 0
        assert "replayed in place" in ran.out
        assert "nothing was sent" in ran.err
        told = shop("replay", *self.KEYS, "--dry-run", "--json", lake=lake).json
        assert (told["dry_run"], told["finished"], told["replayed"]) == (True, False, 0)
        assert [(row["action"], row["messages"]) for row in told["counts"]] == [("in place", 2)]
        assert Admin(shop.post).counts("orders").journal_last == before
        assert not (lake / "replays").exists()

    def test_it_is_done_once_under_its_name_and_no_more(self, shop: Shop, lake: Path) -> None:
        admin = Admin(shop.post)
        dead = {message.id for message in admin.walk("orders", State.DEAD)}
        words = (*self.KEYS, "--name", "keys", "--yes")
        try:
            ran = shop("replay", *words, "--json", lake=lake)
            assert (ran.code, ran.json["replayed"], ran.json["finished"]) == (0, 2, True)
            again = shop("replay", *words, lake=lake)
            assert again.code == 0
            assert "0 messages replayed as keys" in again.err
            assert admin.counts("orders").totals["replayed"] == 2

            other = shop("replay", "--where", "true", "--name", "keys", "--yes", lake=lake)
            assert other.code == 2
            assert "the replay keys was planned with --where" in other.error
            assert "error_class = 'KeyError'" in other.error
            elsewhere = shop("replay", "--name", "keys", "--to", "repair", "--yes", lake=lake)
            assert elsewhere.code == 2
        finally:
            # As it was, for the others.
            queue = shop.post.queue("orders")
            gone = dead - {message.id for message in admin.walk("orders", State.DEAD)}
            held = queue.receive_many(100)
            queue.bury_many([message for message in held if message.id in gone], error=KeyError("price"))
            queue.release_many([message for message in held if message.id not in gone])

    @pytest.mark.parametrize(
        ("words", "code", "text"),
        [
            ((), 2, "select messages"),
            (("--name", "never"), 2, "no replay never"),
            (KEYS, 2, "Give --yes"),
            (("--where", "error_klass = 1", "--yes"), 4, "not a condition"),
            (("--where", "true", "--fate", "lost", "--yes"), 4, "fates are"),
        ],
    )
    def test_what_cannot_be_done_is_refused(
        self, shop: Shop, lake: Path, words: tuple[str, ...], code: int, text: str
    ) -> None:
        ran = shop("replay", *words, lake=lake)
        assert ran.code == code, ran.err
        assert text in ran.error
        assert not (lake / "replays").exists()


class TestWithoutSpark:
    @pytest.mark.parametrize("missing", ["pyspark", "pyarrow"])
    def test_every_command_names_the_remedy(self, missing: str, tmp_path: Path) -> None:
        program = f"""
import sys
sys.modules[{missing!r}] = None
from restante.cli.entry import run
lake = ["--lake", "lake"]
for words in (["run"], ["status"], ["report"], ["audit", "--offline"], ["replay", "--where", "true"]):
    print(run(["pipeline", words[0], *lake, *words[1:]]))
print(run(["pipeline", "--help"]))
"""
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT / "src"), "RESTANTE_URL": "redis://127.0.0.1:1"}
        ran = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ran.stdout.split()[:5] == ["4"] * 5, ran.stderr
        assert ran.stdout.split()[-1] == "0"
        assert ran.stderr.splitlines() == ["error: the pipeline needs Spark: pip install 'restante[spark]'"] * 5
        assert list(tmp_path.iterdir()) == []

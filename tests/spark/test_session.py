"""Restante's Spark session: what it sets, whom it obeys, and what it says where Spark cannot start."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from restante import Client
from restante.core.errors import InvalidInput
from restante.spark import session as module
from restante.spark.session import session
from tests.harness.deadlines import PATIENCE
from tests.harness.processes import CHECKOUT
from tests.harness.requirements import require
from tests.harness.spark_session import MASTER, QUICK
from tests.spark.driving import fresh_name

TELL = "print(s.sparkContext.master, s.sparkContext.appName, s.conf.get('spark.sql.shuffle.partitions'))"


class Runner:
    """Runs Python programs of their own, with variables set or dropped."""

    def __init__(self, folder: Path) -> None:
        self._script = folder / "program.py"

    def __call__(self, program: str, *, drop: tuple[str, ...] = (), **env: str) -> subprocess.CompletedProcess[str]:
        # A file, not `-c`: Spark Connect takes a program without a file for its own doctests, and exits.
        self._script.write_text(program)
        own = {key: value for key, value in os.environ.items() if key not in drop and not key.startswith("SPARK_")}
        return subprocess.run(
            [sys.executable, "-W", "error", str(self._script)],
            # In a folder of its own: a table makes Spark leave its warehouse where it runs.
            env={**own, "PYTHONPATH": str(CHECKOUT), **env},
            cwd=self._script.parent,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


class TestTheSession:
    def test_it_has_the_settings_of_local_use(self, spark: SparkSession) -> None:
        wanted = {
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            "spark.sql.shuffle.partitions": "1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": QUICK["spark.driver.memory"],
        }
        assert {key: spark.conf.get(key) for key in wanted} == wanted
        assert spark.sparkContext.master == MASTER

    def test_an_active_session_is_taken_as_it_is(self, spark: SparkSession) -> None:
        assert session(master="local[4]", name="other", conf={"spark.sql.shuffle.partitions": "7"}) is spark
        assert spark.conf.get("spark.sql.shuffle.partitions") == "1"

    def test_instants_are_utc_whatever_the_machine_says(self, spark: SparkSession) -> None:
        (row,) = spark.sql("select date_format(timestamp_seconds(0), 'yyyy-MM-dd HH:mm') as at").collect()
        assert row["at"] == "1970-01-01 00:00"

    def test_python_workers_are_this_python(self, spark: SparkSession) -> None:
        executable = f.udf(lambda _: sys.executable, "string")
        (row,) = spark.range(1).select(executable("id").alias("python")).collect()
        assert row["python"] == sys.executable

    def test_a_master_and_a_remote_are_refused(self) -> None:
        with pytest.raises(InvalidInput, match="not both"):
            session(master=MASTER, remote="sc://127.0.0.1")


class TestStarting:
    def test_a_program_says_nothing_but_its_own_words_and_knows_the_format_untold(
        self, run: Runner, post: Client
    ) -> None:
        require("java")
        blocks = fresh_name("blocks")
        for count in range(1, 10):
            post.queue(blocks).send_many([f"{count}.{n}" for n in range(count)])
        post.queue(fresh_name("other")).send(1)
        ran = run(
            f"""
from pyspark.errors import AnalysisException
from tests.harness.spark_session import quick_session
s = quick_session()
s.range(3).selectExpr("sum(id)").collect()
try:
    s.sql("select nothing").collect()
except AnalysisException:
    {TELL}
print("lines", s.read.format("restante").option("url", "{post.url}").load().count())
s.sql("CREATE TABLE blocks USING restante OPTIONS (url '{post.url}', queues '{blocks}')")
(row,) = s.sql("SELECT event, count(*), max(position) FROM blocks GROUP BY event").collect()
print("table", *row)
s.stop()
"""
        )
        said = f"{MASTER} tests 1\nlines 46\ntable sent 45 45\n"
        assert (ran.stdout, ran.stderr, ran.returncode) == (said, "", 0)

    def test_what_spark_submit_says_wins(self, tmp_path: Path) -> None:
        require("java")
        java = " ".join([QUICK["spark.driver.extraJavaOptions"], *module._archive_options(module._java_version())])
        script = tmp_path / "submitted.py"
        script.write_text(f"from restante.spark.session import session\ns = session(master='local[3]')\n{TELL}\n")
        submit, python = Path(pyspark.__path__[0], "bin", "spark-submit"), sys.executable
        conf = ["--master", "local[1]", "--name", "given", "--conf", "spark.sql.shuffle.partitions=9"]
        ran = subprocess.run(
            [submit, *conf, "--driver-java-options", java, str(script)],
            env={**os.environ, "SPARK_HOME": str(module._home() or submit.parents[1]), "PYSPARK_PYTHON": python},
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )
        assert ran.stdout == "local[1] given 9\n", ran.stderr

    def test_missing_java_is_named_with_its_remedy(self, run: Runner, tmp_path: Path) -> None:
        ran = run("from restante.spark.session import session; session()", drop=("JAVA_HOME",), PATH=str(tmp_path))
        assert "restante.core.errors.Unavailable: Spark needs Java 17 or newer, and java does not run" in ran.stderr
        assert "default-jre-headless" in ran.stderr

    def test_an_old_java_is_named_with_its_remedy(self, run: Runner, tmp_path: Path) -> None:
        java = tmp_path / "bin" / "java"
        java.parent.mkdir()
        java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
        java.chmod(0o755)
        ran = run("from restante.spark.session import session; session()", JAVA_HOME=str(tmp_path))
        assert "Unavailable: Spark needs Java 17 or newer" in ran.stderr
        assert "11.0.2" in ran.stderr

    def test_a_wrong_setting_is_named_in_javas_words_without_its_stack(self, run: Runner) -> None:
        require("java")
        ran = run("from restante.spark.session import session; session(master='nonsense')")
        assert "restante.core.errors.Unavailable: Java ended while Spark started: " in ran.stderr
        assert "Master must either be yarn or start with spark" in ran.stderr
        assert "SparkSubmit.scala" not in ran.stderr

    def test_missing_packages_of_spark_connect_are_named_with_their_remedy(self, run: Runner) -> None:
        program = "from restante.spark.session import session; session(remote='sc://127.0.0.1:9')"
        ran = run(f"import sys; sys.modules['grpc'] = None; {program}")
        assert "InvalidInput: Spark Connect needs more packages" in ran.stderr
        assert "pip install 'pyspark[connect]'" in ran.stderr

    def test_missing_spark_is_named_with_its_remedy(self, run: Runner) -> None:
        ran = run("import sys; sys.modules['pyspark'] = None; import restante.spark.session")
        assert "pip install 'restante[spark]'" in ran.stderr


class TestTheArchive:
    @pytest.fixture(autouse=True)
    def _own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setenv("RESTANTE_SPARK_ARCHIVE", "1")

    @staticmethod
    def finish(options: list[str], content: bytes) -> Path:
        """Writes what Java would write while it ends."""
        (written,) = [Path(option.partition("=")[2]) for option in options if "ArchiveClassesAtExit" in option]
        written.write_bytes(content)
        return written

    def test_the_first_run_writes_it_and_the_next_starts_from_it(self) -> None:
        self.finish(module._archive_options("17"), module._ARCHIVE_MARK + b"classes")
        option, *_ = module._archive_options("17")
        assert option.startswith("-XX:SharedArchiveFile=")
        assert Path(option.partition("=")[2]).read_bytes() == module._ARCHIVE_MARK + b"classes"

    def test_one_that_is_still_being_written_is_left_alone(self) -> None:
        written = self.finish(module._archive_options("17"), bytes(100))
        assert "ArchiveClassesAtExit" in module._archive_options("17")[0]
        assert written.exists()

    def test_one_of_another_java_is_not_taken(self) -> None:
        self.finish(module._archive_options("17"), module._ARCHIVE_MARK)
        assert "ArchiveClassesAtExit" in module._archive_options("21")[0]

    def test_one_that_was_cut_short_is_not_taken(self) -> None:
        self.finish(module._archive_options("17"), module._ARCHIVE_MARK + b"classes")
        taken = Path(module._archive_options("17")[0].partition("=")[2])
        taken.write_bytes(module._ARCHIVE_MARK)
        assert "ArchiveClassesAtExit" in module._archive_options("17")[0]

    def test_of_two_first_runs_one_is_kept(self, tmp_path: Path) -> None:
        options = module._archive_options("17")
        for word in (b"one", b"other"):
            self.finish(options, module._ARCHIVE_MARK + word)
            taken = Path(module._archive_options("17")[0].partition("=")[2])
        assert [file.name for file in taken.parent.iterdir() if file.is_file()] == [taken.name]
        assert taken.read_bytes() == module._ARCHIVE_MARK + b"one"

    def test_one_that_nobody_used_for_long_is_removed(self) -> None:
        self.finish(module._archive_options("17"), module._ARCHIVE_MARK)
        taken = Path(module._archive_options("17")[0].partition("=")[2])
        os.utime(taken, (0, 0))
        module._archive_options("21")
        assert not taken.exists()

    def test_there_is_none_where_it_is_not_wanted_or_cannot_be_kept(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        assert module._archive_options("17") == []
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.delenv("RESTANTE_SPARK_ARCHIVE")
        monkeypatch.setattr("os.isatty", lambda _: False)
        assert module._archive_options("17") == []
        monkeypatch.setenv("RESTANTE_SPARK_ARCHIVE", "0")
        assert module._archive_options("17") == []

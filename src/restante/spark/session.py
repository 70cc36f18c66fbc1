"""Starts a Spark session as Restante needs it: local by default, quiet, in UTC, and quick to start.

An active session is used as it is, and settings of spark-submit override those given here. On failure: where Spark
cannot start, `Unavailable` or `InvalidInput` names the remedy. The class archive only makes starts quicker: where it
cannot be kept or does not fit, Spark starts without it.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from restante.core.errors import InvalidInput, MissingExtra, RestanteError, Unavailable

try:
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.logger import PySparkLogger
    from pyspark.sql import SparkSession
except ModuleNotFoundError as missing:
    raise MissingExtra("Spark is not installed: pip install 'restante[spark]'", name=missing.name) from missing

#: The oldest Java that Spark 4 runs on.
OLDEST_JAVA: Final = 17
#: Least and most MiB of heap for a local Spark, whose driver does all the work; in between, half of the machine's
#: memory. Spark refuses to start with less; the pipeline gains nothing from more.
HEAP_MIB: Final = (512, 4096)
#: Seconds after which an unused or unfinished archive is removed.
ARCHIVE_KEPT: Final = 30 * 86_400
#: The first bytes of a finished archive. Java writes them last, so a file without them is still being written.
_ARCHIVE_MARK: Final = bytes.fromhex("a8ab0bf0")
#: Java prints this at every start, because Spark uses the module; no option silences it.
_CHATTER: Final = b"WARNING: Using incubator modules"
#: PySpark's loggers that also write every raised error to standard error, as JSON with the whole stack.
_ECHOES: Final = ("DataFrameQueryContextLogger", "SQLQueryContextLogger")
#: If one of these is set, the user keeps spark-defaults.conf and logging settings: ours only fill gaps.
_KEPT_ELSEWHERE: Final = ("SPARK_CONF_DIR", "SPARK_HOME")
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


def session(
    *, master: str | None = None, name: str = "restante", conf: Mapping[str, str] = _NOTHING, remote: str | None = None
) -> SparkSession:
    """Returns the active Spark session, or starts one: on this machine, on `master`, or by Spark Connect at `remote`.

    `master` and `conf` apply to a new session only; settings of spark-submit override them.
    """
    remote = remote or os.environ.get("SPARK_REMOTE")
    if remote and master:
        raise InvalidInput(f"give a master or a remote, not both: {master} and {remote} (remote= or SPARK_REMOTE)")
    if not remote and (active := _active()) is not None:
        return active
    asked = {"spark.app.name": name, **({"spark.master": master} if master else {}), **conf}
    with _foreign_errors(remote or master or "local"):
        return _connected(remote, asked) if remote else _started(asked)


def _active() -> SparkSession | None:
    """This thread's session, or the one that another thread has started."""
    try:
        return SparkSession.active()
    except PySparkRuntimeError:
        return None


def _connected(remote: str, asked: Mapping[str, str]) -> SparkSession:
    builder = SparkSession.builder.remote(remote).config("spark.sql.session.timeZone", "UTC")
    for key, value in asked.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _started(asked: Mapping[str, str]) -> SparkSession:
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if not submitted and SparkContext._gateway is None:
        _launch(asked)
    # Private, but the only way to read the settings of spark-submit before a context exists.
    SparkContext._ensure_initialized()
    for echo in _ECHOES:
        PySparkLogger.getLogger(echo).setLevel(logging.CRITICAL)
    given = dict(SparkConf().getAll())
    if not submitted:
        given.pop("spark.ui.showConsoleProgress", None)  # an interactive shell would draw over our progress bars
    wanted = {**asked, **given} if submitted else {**given, **asked}
    builder = SparkSession.builder
    for key, value in {**_defaults(wanted.get("spark.master", "local[*]")), **wanted}.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _is_local(master: str) -> bool:
    return re.match(r"local($|\[|-cluster\[)", master) is not None


def _defaults(master: str) -> dict[str, str]:
    """Default settings; a cluster keeps its own network, memory and partitions."""
    everywhere = {
        "spark.sql.session.timeZone": "UTC",
        "spark.ui.showConsoleProgress": "false",
        # A refresh of the tables needs more generated classes than Spark caches by default: it would recompile them.
        "spark.sql.codegen.cache.maxEntries": "1000",
    }
    if importlib.util.find_spec("pandas") is None:
        # By default Spark uses Arrow for Python functions and warns at each one that this needs pandas too.
        everywhere["spark.sql.execution.pythonUDF.arrow.enabled"] = "false"
    if not _is_local(master):
        return everywhere
    cores = re.match(r"local\[(\d+)", master)
    return {
        **everywhere,
        "spark.master": master,
        "spark.ui.enabled": "false",
        # More would only give small files and idle tasks.
        "spark.sql.shuffle.partitions": cores[1] if cores else str(os.cpu_count() or 2),
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
    }


@contextmanager
def _foreign_errors(where: str) -> Iterator[None]:
    try:
        yield
    except RestanteError:
        raise
    except ImportError as missing:
        # PySpark's own message names the package, but not the extra that installs it.
        raise InvalidInput(
            f"Spark Connect needs more packages ({missing}): pip install 'pyspark[connect]'"
        ) from missing
    except Exception as failure:
        # Java's errors include their stacks: the last line outside them names the root cause.
        cause = next((line for line in reversed(str(failure).splitlines()) if ": " in line and "\tat " not in line), "")
        raise Unavailable(f"Spark did not start ({where}): {cause.strip(' :') or failure}") from failure


# Starting Java.


def _launch(asked: Mapping[str, str]) -> None:
    """Starts the JVM with the options that it takes only at its start."""
    java = _java_version()
    if _is_local(asked.get("spark.master", "local[*]")):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if any(name in os.environ for name in _KEPT_ELSEWHERE):
        _check(_open_gateway(asked, []))
        return
    archive = _archive_options(java)
    output = _open_gateway(asked, [*_options(asked), *archive])
    if output == "" and archive:
        # With a wrong setting Java prints an error. With a damaged archive it ends without output.
        Path(archive[0].partition("=")[2]).unlink(missing_ok=True)
        output = _open_gateway(asked, _options(asked))
    _check(output)


def _check(output: str | None) -> None:
    if output is not None:
        raise Unavailable(f"Java ended while Spark started: {output or 'it printed no error'}")


def _open_gateway(asked: Mapping[str, str], options: list[str]) -> str | None:
    """Starts the JVM and gives PySpark its gateway; returns the JVM's output if it ended instead."""
    settings = dict(asked)
    if options:
        own = " ".join(f'"{option}"' if " " in option else option for option in options)
        settings.setdefault("spark.driver.memory", _heap())
        settings["spark.driver.extraJavaOptions"] = f"{own} {asked.get('spark.driver.extraJavaOptions', '')}".strip()
    conf = SparkConf(loadDefaults=False)
    for key, value in settings.items():
        conf.set(key, value)
    reading, writing = os.pipe()
    stderr = _Stderr(reading)
    launch: Callable[..., Any] = launch_gateway
    try:
        with _spark_home(_home() if options else None):
            gateway = launch(conf, popen_kwargs={"stderr": writing})
    except PySparkRuntimeError:
        gateway = None
    finally:
        os.close(writing)
    if gateway is None:
        return stderr.held_back()
    stderr.pass_on()
    SparkContext._ensure_initialized(gateway=gateway)
    return None


@contextmanager
def _spark_home(home: Path | None) -> Iterator[None]:
    if home is None:
        yield
        return
    os.environ["SPARK_HOME"] = str(home)
    try:
        yield
    finally:
        del os.environ["SPARK_HOME"]


def _home() -> Path | None:
    """Returns a Spark home without PySpark's zip file, kept between runs; None where it cannot be created.

    Spark puts `python/lib/pyspark.zip` of its home first on the path, and Python recompiles what it imports from a zip
    each time: 0.7 CPU seconds per Python process, of which a first query starts ten. Without the zip they import this
    process's own PySpark, which is compiled.
    """
    installed = Path(pyspark.__path__[0])
    key = hashlib.sha256(f"{pyspark.__version__}|{installed}".encode()).hexdigest()[:16]
    try:
        home = _cache() / f"home-{key}"
        if not home.is_dir():
            fresh = _cache() / f"home-{key}.{os.getpid()}.new"
            fresh.mkdir()
            for name in ("bin", "jars"):
                (fresh / name).symlink_to(installed / name)
            try:
                fresh.rename(home)
            except OSError:  # another start was quicker
                for name in ("bin", "jars"):
                    (fresh / name).unlink()
                fresh.rmdir()
        return home if (home / "bin" / "spark-submit").exists() and (home / "jars").exists() else None
    except (OSError, RuntimeError):
        return None


def _cache() -> Path:
    """The folder of files that are kept between starts."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "restante", "spark")
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


class _Stderr:
    """The JVM's standard error: held back until the JVM has started, then passed on by line, without `_CHATTER`."""

    def __init__(self, source: int) -> None:
        self._held: list[bytes] = []
        self._passing = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._listen, args=(source,), name="restante-spark-stderr", daemon=True)
        self._thread.start()

    def _listen(self, source: int) -> None:
        with open(source, "rb") as lines:
            for line in lines:
                if line.startswith(_CHATTER):
                    continue
                with self._lock:
                    if self._passing:
                        os.write(2, line)
                    else:
                        self._held.append(line)

    def pass_on(self) -> None:
        with self._lock:
            self._passing = True
            os.write(2, b"".join(self._held))

    def held_back(self) -> str:
        """The output held back so far, without Java's stacks."""
        self._thread.join(timeout=5)
        with self._lock:
            lines = [line.decode(errors="replace").strip() for line in self._held if not line.startswith(b"\tat ")]
        return " ".join(line for line in lines if line)[:1000]


def _java_version() -> str:
    """The version text of the Java that Spark will use; raises Unavailable if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    remedy = "on Debian: apt-get install default-jre-headless; elsewhere set JAVA_HOME"
    try:
        version = subprocess.run([program, "-version"], capture_output=True, text=True, timeout=60).stderr
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise Unavailable(f"Spark needs Java {OLDEST_JAVA} or newer, and {program} does not run; {remedy}") from failure
    match = re.search(r'version "(\d+)', version)
    if match is None or int(match[1]) < OLDEST_JAVA:
        raise Unavailable(f"Spark needs Java {OLDEST_JAVA} or newer, {program} is {version.strip()[:60]!r}; {remedy}")
    return version


def _heap() -> str:
    least, most = HEAP_MIB
    half = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**21
    return f"{max(least, min(half, most))}m"


def _options(asked: Mapping[str, str]) -> list[str]:
    """Java options: quiet logging, and the garbage collector that uses a tenth less CPU, unless another is set."""
    options = [f"-Dlog4j2.configurationFile={Path(__file__).with_name('log4j2.properties')}"]
    if not re.search(r"-XX:\+Use\w+GC", asked.get("spark.driver.extraJavaOptions", "")):
        options.append("-XX:+UseParallelGC")
    return options


# The class archive: Java's own cache of loaded classes, kept between runs.


def _archive_options(java: str) -> list[str]:
    """Java options to start from the archive, or to write one at exit; none if neither is wanted.

    Java writes for some seconds after the program has ended, and a program that reads its output would wait for that:
    so by default this happens on a terminal only. RESTANTE_SPARK_ARCHIVE=1 always writes, =0 uses no archive.
    """
    choice = os.environ.get("RESTANTE_SPARK_ARCHIVE")
    if choice == "0":
        return []
    # An archive fits one Java and one set of jars at one path.
    fits = f"{java}|{pyspark.__version__}|{_home() or pyspark.__path__[0]}"
    key = hashlib.sha256(fits.encode()).hexdigest()[:16]
    try:
        folder = _cache()
        archive = _take_archive(folder, key)
    except (OSError, RuntimeError):
        return []  # a full disk, a read-only home directory, or none
    if archive is not None:
        return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable"]
    if choice != "1" and not os.isatty(1):
        return []
    return [f"-XX:ArchiveClassesAtExit={folder / f'{key}.{os.getpid()}.new'}", "-Xlog:disable"]


def _take_archive(folder: Path, key: str) -> Path | None:
    """The archive for this key. Its name includes its size, because Java would crash on a truncated file."""
    for file in folder.glob("*.new"):
        with file.open("rb") as opened:
            finished = opened.read(len(_ARCHIVE_MARK)) == _ARCHIVE_MARK
        whose = file.name.partition(".")[0]
        if finished and next(folder.glob(f"{whose}.*.jsa"), None) is None:
            file.replace(folder / f"{whose}.{file.stat().st_size}.jsa")
        elif finished:
            file.unlink()  # two first runs at once
    for file in [*folder.glob("*.jsa"), *folder.glob("*.new")]:
        if time.time() - file.stat().st_mtime > ARCHIVE_KEPT:
            file.unlink()
    for file in folder.glob(f"{key}.*.jsa"):
        if file.stat().st_size == int(file.name.split(".")[1]):
            os.utime(file)
            return file
        file.unlink()
    return None

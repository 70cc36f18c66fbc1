"""RabbitMQ servers of our own: a node, its epmd and its data, on free ports and on this machine alone.

A server that does not start raises with the end of its log. Ports that were taken in the meantime are
chosen anew, except on a restart, because clients hold the old address. Nothing of a server outlives the
process that started it.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import amqp

from tests.harness.deadlines import PATIENCE
from tests.harness.processes import SIGNAL_TIMEOUT, is_alive, spawn
from tests.harness.requirements import lack, require
from tests.harness.servers import HOST, PortTaken, ServerFailed, free_port

__all__ = ["RabbitServer", "server_script"]

#: The script behind Debian's wrapper. The wrapper insists on the user rabbitmq, or on root and then becomes it.
DEBIAN_SCRIPT: Final = Path("/usr/lib/rabbitmq/bin/rabbitmq-server")

#: Times to try other ports before giving up; each is a chance of 1 in thousands, and takes a start's time.
PORT_ATTEMPTS: Final = 3

#: Seconds a node may take to answer; alone it needs about four, most of them spent loading code.
START_TIMEOUT: Final = PATIENCE

#: Seconds a node may take to end in order; a quiet one needs one.
STOP_TIMEOUT: Final = PATIENCE

#: Seconds between two looks at a starting node; longer only slows the tests.
POLL: Final = 0.02

#: Seconds one look may take.
PROBE_TIMEOUT: Final = 30.0

#: Two schedulers that sleep when idle and go where there is room: by default a node takes a thread per core, bound to
#: it, and spins for work.
ERL_ARGUMENTS: Final = (
    "+S 2:2 +stbt u +sbwt none +sbwtdcpu none +sbwtdio none -kernel inet_dist_use_interface {127,0,0,1}"
)


#: A rung that comes up before the queue it leads to tries again after this, three minutes by default: the tests would
#: wait for it after every restart (docs/guide/events.md recommends the same).
ADVANCED: Final = "[{rabbit, [{dead_letter_worker_publisher_confirm_timeout, 10000}]}].\n"

#: Applications of Erlang itself whose modules a starting node needs nearly all.
LOADED_AT_START: Final = ("kernel", "stdlib", "sasl", "mnesia")

#: An Erlang program that evaluates each line of its input on the node and prints the outcome as one line.
EVALUATOR: Final = """
Node = list_to_atom(os:getenv("RABBITMQ_NODENAME")),
Next = fun(Again) ->
  case io:get_line("") of
    eof -> halt(0);
    Line ->
      {ok, Tokens, _} = erl_scan:string(Line),
      {ok, Expressions} = erl_parse:parse_exprs(Tokens),
      io:format("~0p~n", [rpc:call(Node, erl_eval, exprs, [Expressions, []])]),
      Again(Again)
  end
end,
Next(Next).
"""


def server_script() -> Path:
    """The script that becomes the server; missing, the test is skipped, or fails if CI is "true"."""
    if os.access(DEBIAN_SCRIPT, os.X_OK):
        return DEBIAN_SCRIPT
    found = shutil.which("rabbitmq-server")
    if found is None:
        lack("rabbitmq-server is not installed")
    return Path(found).resolve()


class RabbitServer:
    """One RabbitMQ node without plugins. Use as a context manager, or call `start` and `close`."""

    def __init__(self, *, start_timeout: float = START_TIMEOUT) -> None:
        self.script = server_script()
        self._epmd_binary = require("epmd")
        self._start_timeout = start_timeout
        self.directory = Path(tempfile.mkdtemp(prefix="restante-rabbitmq-"))
        self.node = f"{self.directory.name}@localhost"
        self._plugins = self._broker_alone()
        self._code = self._code_folder()
        self._child: subprocess.Popen[bytes] | None = None
        self._epmd: subprocess.Popen[bytes] | None = None
        self._evaluator: subprocess.Popen[bytes] | None = None
        self._epmd_port = 0
        self._port: int | None = None
        self._distribution_port = 0
        self._starts = 0

    @property
    def port(self) -> int:
        if self._port is None:
            raise ServerFailed("the server was never started")
        return self._port

    @property
    def url(self) -> str:
        return self._url("/")

    @property
    def pid(self) -> int:
        if self._child is None:
            raise ServerFailed("the server was never started")
        return self._child.pid

    @property
    def alive(self) -> bool:
        return self._child is not None and self._child.poll() is None

    @property
    def log(self) -> str:
        """What the node has said and logged, over all restarts."""
        files = [self.directory / "output", *sorted((self.directory / "log").glob("*.log"))]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def start(self) -> Self:
        """Starts the node and returns once it takes a login; again on the same port and data after a stop."""
        if self.alive:
            raise ServerFailed(f"the server runs already, pid={self.pid}")
        again = self._port is not None
        for _ in range(PORT_ATTEMPTS):
            if not again:
                self._port, self._distribution_port = free_port(), free_port()
            try:
                self._start_epmd()
                self._start_node()
            except PortTaken as taken:
                if again:
                    raise
                last = taken
                continue
            self._starts += 1
            return self
        raise PortTaken(f"every port was taken, {PORT_ATTEMPTS} times in a row: {last}")

    def stop(self) -> None:
        """SIGTERM, as an operator does: the node writes down what it holds, and ends."""
        if self._child is None:
            return
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerFailed(f"the server ignored SIGTERM\n{self.log[-2000:]}") from None

    def kill(self) -> None:
        """SIGKILL to the node; its data stay as they are on the disk."""
        if self._child is not None:
            try:
                os.killpg(self._child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # It has ended already.
            self._child.wait(SIGNAL_TIMEOUT)

    def restart(self) -> None:
        """Starts again on the same port and data; stops the node first if it runs."""
        self.stop()
        self.start()

    def control(self, *words: str) -> str:
        """Runs `rabbitmqctl`, which takes most of a second; returns its output."""
        program = self.script.with_name("rabbitmqctl")
        done = subprocess.run(
            [program, "--quiet", "--node", self.node, *words],
            env=self._environment(),
            text=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=self._start_timeout,
        )
        if done.returncode:
            raise ServerFailed(f"rabbitmqctl {' '.join(words)} ended with {done.returncode}: {done.stdout}")
        return done.stdout

    def evaluate(self, expressions: str) -> None:
        """Evaluates Erlang expressions on the node, in an Erlang of its own that goes on: a hundred times as fast as
        `rabbitmqctl eval`."""
        if self._evaluator is None or self._evaluator.poll() is not None:
            with (self.directory / "output").open("ab") as output:
                self._evaluator = spawn(
                    [
                        require("erl"),
                        "-noshell",
                        "-hidden",
                        "-sname",
                        f"eval-{self.node}",
                        *ERL_ARGUMENTS.split(),
                        "-eval",
                        EVALUATOR,
                    ],
                    env=self._environment(),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                )
        assert self._evaluator.stdin is not None
        assert self._evaluator.stdout is not None
        self._evaluator.stdin.write(f"{expressions}\n".encode())
        self._evaluator.stdin.flush()
        outcome = self._evaluator.stdout.readline().decode(errors="replace")
        if not outcome.startswith("{value,"):
            raise ServerFailed(f"{expressions}: {outcome}")

    def write_down(self) -> None:
        """Returns when what was declared is on the disk.

        RabbitMQ answers a declaration before: killed within milliseconds of it, the node comes back without the queue
        and what was confirmed in it. Call this before `kill` in tests about messages, not about declarations.
        """
        self.evaluate("mnesia:sync_log().")

    @contextmanager
    def virtual_host(self, name: str) -> Iterator[str]:
        """A virtual host of its own for the user guest: its URL; deleted afterwards.

        Not if the node has started again meanwhile, and not before its rungs are up: a rung that is deleted while it
        starts ends what all rungs of a RabbitMQ 3.10 need (docs/guide/events.md).
        """
        starts = self._starts
        self.evaluate(
            f'rabbit_vhost:add(<<"{name}">>, <<"test">>), rabbit_auth_backend_internal:set_permissions(<<"guest">>, '
            f'<<"{name}">>, <<".*">>, <<".*">>, <<".*">>, <<"test">>).',
        )
        try:
            yield self._url(name)
        finally:
            if starts == self._starts:
                self.evaluate(
                    "[sys:get_state(Worker) || {_, Worker, _, _} <- supervisor:which_children(rabbit_fifo_dlx_sup)], "
                    f'rabbit_vhost:delete(<<"{name}">>, <<"test">>).'
                )

    def user(self, name: str, password: str, rights: tuple[str, str, str] | None = None) -> str:
        """Adds a user with these rights to configure, write and read in `/`, or none at all; returns its URL."""
        words = [f'rabbit_auth_backend_internal:add_user(<<"{name}">>, <<"{password}">>, <<"test">>)']
        if rights is not None:
            patterns = ", ".join(f'<<"{one}">>' for one in rights)
            words.append(f'rabbit_auth_backend_internal:set_permissions(<<"{name}">>, <<"/">>, {patterns}, <<"test">>)')
        self.evaluate(", ".join(words) + ".")
        return f"amqp://{name}:{password}@{HOST}:{self.port}//"

    def family(self) -> list[int]:
        """Every living process of this node: the node, its epmd and what they started."""
        mark = f"HOME={self.directory}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdecimal() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
            except OSError:
                continue  # It has ended, or is another user's.
        return [pid for pid in found if is_alive(pid)]

    def close(self) -> None:
        """Ends the node and everything it started, and removes its data."""
        # Nobody reads the data again, so that ending in order would only take longer.
        self.kill()
        if self._evaluator is not None:
            self._evaluator.kill()
            self._evaluator.wait(SIGNAL_TIMEOUT)
            for pipe in (self._evaluator.stdin, self._evaluator.stdout):
                assert pipe is not None
                pipe.close()
        if self._epmd is not None:
            self._epmd.kill()
            self._epmd.wait(SIGNAL_TIMEOUT)
        deadline = time.monotonic() + SIGNAL_TIMEOUT
        # The node's own children end when they notice that it is gone.
        while left := self.family():
            if time.monotonic() > deadline:
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                break
            time.sleep(POLL)
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _url(self, virtual_host: str) -> str:
        return f"amqp://guest:guest@{HOST}:{self.port}/{virtual_host}"

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("RABBITMQ_", "ERL_"))}
        own = {
            name: str(self.directory / value)
            for name, value in (
                ("HOME", ""),
                # Named although absent or empty: the system's own files are read otherwise.
                ("RABBITMQ_CONF_ENV_FILE", "rabbitmq-env.conf"),
                ("RABBITMQ_CONFIG_FILE", "rabbitmq.conf"),
                ("RABBITMQ_ADVANCED_CONFIG_FILE", "advanced.config"),
                ("RABBITMQ_ENABLED_PLUGINS_FILE", "enabled_plugins"),
                ("RABBITMQ_MNESIA_BASE", "data"),
                ("RABBITMQ_FEATURE_FLAGS_FILE", "feature_flags"),
                ("RABBITMQ_PLUGINS_EXPAND_DIR", "plugins"),
                ("RABBITMQ_PID_FILE", "pid"),
                ("RABBITMQ_LOG_BASE", "log"),
            )
        }
        return {
            **kept,
            **own,
            **({"RABBITMQ_PLUGINS_DIR": str(self._plugins)} if self._plugins else {}),
            **self._code,
            "RABBITMQ_NODENAME": self.node,
            "RABBITMQ_DIST_PORT": str(self._distribution_port),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": ERL_ARGUMENTS,
            "RABBITMQ_CTL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": HOST,
            "ERL_CRASH_DUMP_BYTES": "0",
            # Makes the script become the node, instead of waiting for it as its parent.
            "detached": "yes",
        }

    def _broker_alone(self) -> Path | None:
        """A folder of plugins with the broker itself and no other: a node reads them all, for a third of its start."""
        broker = self._broker()
        if broker is None:
            return None
        made = self.directory / "installed"
        made.mkdir()
        (made / broker.name).symlink_to(broker)
        return made

    def _broker(self) -> Path | None:
        home = self.script.parents[1]
        for folder in (home, *home.glob("lib/rabbitmq_server-*")):
            for broker in (folder / "plugins").glob("rabbit-[0-9]*"):
                return broker
        return None

    def _code_folder(self) -> dict[str, str]:
        """Variables that make a start cost half the CPU; none if the code is packed or elsewhere.

        A node searches a hundred folders for each of a thousand modules, loads them one by one, and loads all modules
        that its applications name, needed or not. So one folder has the broker and all it depends on, one call loads
        what a start needs, and the applications of Erlang itself name no modules: the others are loaded when needed.
        """
        broker = self._broker()
        if broker is None or (erl := shutil.which("erl")) is None:
            return {}
        erlang = {_application(ebin): ebin for ebin in Path(erl).resolve().parents[1].glob("lib/*/ebin")}
        plugins = {_application(ebin): ebin for ebin in broker.parent.glob("*/ebin")}
        if "rabbit" not in plugins or not {*LOADED_AT_START} <= erlang.keys():
            return {}
        folder = self.directory / "code"
        folder.mkdir()
        modules: list[str] = []
        names = ["rabbit", *LOADED_AT_START]
        for name in names:  # grows while it is read
            ebin = plugins.get(name) or erlang.get(name)
            if ebin is None:
                continue
            stated = (ebin / f"{name}.app").read_text()
            needed = re.search(r"{\s*applications\s*,\s*\[([^]]*)]", stated)
            names += [one for one in re.findall(r"\w+", needed[1] if needed else "") if one not in names]
            beams = sorted(ebin.glob("*.beam"))
            if name in plugins or name in LOADED_AT_START:
                modules += [beam.stem for beam in beams]
            if name in ("kernel", "stdlib"):
                continue  # They are searched first, and sticky.
            for beam in beams:
                (folder / beam.name).symlink_to(beam)
            if name in erlang:
                unnamed = re.sub(r"{\s*modules\s*,\s*\[[^]]*]", "{modules, []", stated)
                (folder / f"{name}.app").write_text(unnamed)
        return {
            "RABBITMQ_SERVER_CODE_PATH": str(folder),
            # The script puts this between `-s` and `boot`; `-s` calls a function with a list of names.
            "RABBITMQ_BOOT_MODULE": f"code ensure_modules_loaded {' '.join(modules)} -s rabbit",
        }

    def _start_epmd(self) -> None:
        # A node without epmd starts one as a daemon, which stays when the node has gone.
        if self._epmd is not None and self._epmd.poll() is None:
            return
        self._epmd_port = free_port()
        command: list[str | Path] = [self._epmd_binary, "-port", str(self._epmd_port), "-address", HOST]
        with (self.directory / "output").open("ab") as output:
            self._epmd = spawn(command, env=self._environment(), stdout=output, stderr=subprocess.STDOUT)
        deadline = time.monotonic() + self._start_timeout
        while not _listens(self._epmd_port):
            if self._epmd.poll() is not None:
                raise PortTaken(f"epmd ended on port {self._epmd_port}\n{self.log[-2000:]}")
            if time.monotonic() > deadline:
                raise ServerFailed(f"no epmd on port {self._epmd_port}\n{self.log[-2000:]}")
            time.sleep(POLL)

    def _start_node(self) -> None:
        (self.directory / "enabled_plugins").write_text("[].\n")
        (self.directory / "rabbitmq-env.conf").write_text("")
        (self.directory / "rabbitmq.conf").write_text(
            f"listeners.tcp.local = {HOST}:{self.port}\n"
            "num_acceptors.tcp = 2\n"
            "log.console = false\n"
            "log.file.level = warning\n"
            "disk_free_limit.absolute = 1MB\n"
            "vm_memory_high_watermark.absolute = 512MB\n"
            "raft.wal_max_size_bytes = 16000000\n"
        )
        (self.directory / "advanced.config").write_text(ADVANCED)
        said = len(self.log)
        with (self.directory / "output").open("ab") as output:
            self._child = spawn(
                [self.script], env=self._environment(), cwd=self.directory, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            self._prove_ours(said)
        except BaseException:
            self.kill()
            raise

    def _prove_ours(self, said: int) -> None:
        assert self._child is not None
        deadline = time.monotonic() + self._start_timeout
        while True:
            if self._child.poll() is not None:
                log = self.log[said:]
                if "eaddrinuse" in log or "address already in use" in log.lower():
                    raise PortTaken(f"port {self.port} is taken")
                raise ServerFailed(f"exit={self._child.returncode}\n{log[-4000:]}")
            if _listens(self.port) and (answering := self._answering()) is not None:
                # The cluster is named after its first node, with the machine's full name behind the @.
                if answering.partition("@")[0] != self.node.partition("@")[0]:
                    raise PortTaken(f"port {self.port} belongs to {answering}")
                return
            if time.monotonic() > deadline:
                raise ServerFailed(f"no answer on port {self.port}\n{self.log[said:][-4000:]}")
            time.sleep(POLL)

    def _answering(self) -> str | None:
        """The name of the node that takes a login on our port, None while nobody does."""
        timeouts = {"connect_timeout": PROBE_TIMEOUT, "read_timeout": PROBE_TIMEOUT}
        try:
            with amqp.Connection(f"{HOST}:{self.port}", "guest", "guest", **timeouts) as probe:
                return str(probe.server_properties["cluster_name"])
        except (OSError, amqp.AMQPError):
            return None


def _application(ebin: Path) -> str:
    return ebin.parent.name.rpartition("-")[0]


def _listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=PROBE_TIMEOUT):
            return True
    except OSError:
        return False

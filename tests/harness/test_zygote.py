"""Children forked from an interpreter that has imported everything are as programs of their own."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from tests.harness.deadlines import wait_until
from tests.harness.processes import PythonProcess, is_alive
from tests.harness.zygote import Forked, run_forked

TOLD = """
import json, os, sys
told = {"argv": sys.argv, "cwd": os.getcwd(), "env": dict(os.environ), "path": sys.path, "stdin": sys.stdin.read()}
told |= {"leads": os.getpgid(0) == os.getpid(), "name": __name__, "redis": "redis" in sys.modules}
print(json.dumps(told))
print("to the other", file=sys.stderr)
sys.exit(3)
"""


def test_a_child_has_its_own_arguments_environment_folder_and_files(tmp_path: Path) -> None:
    env = {"ONE": "1", "PYTHONPATH": f"/first{os.pathsep}/second"}
    code, out, err = run_forked(TOLD, ["told", "x"], env=env, cwd=tmp_path, stdin=b"given")
    told = json.loads(out)
    assert (code, err) == (3, "to the other\n")
    assert told["path"][:3] == ["", "/first", "/second"]
    del told["path"]
    assert told == {
        "argv": ["told", "x"],
        "cwd": str(tmp_path),
        "env": env,
        "stdin": "given",
        "leads": True,
        "name": "__main__",
        "redis": True,
    }
    code, out, err = run_forked(TOLD, ["told"], env={}, cwd=tmp_path, merged=True)
    assert (code, err, out.splitlines()[0]) == (3, "", "to the other")  # which is not buffered


def test_a_child_that_fails_shows_where(tmp_path: Path) -> None:
    code, out, err = run_forked("import atexit; atexit.register(print, 'last')\n1 / 0", ["x"], env={}, cwd=tmp_path)
    assert (code, out) == (1, "last\n")
    assert err.endswith("ZeroDivisionError: division by zero\n")


def test_a_child_can_be_killed_at_once_and_stopped() -> None:
    with PythonProcess("import time; time.sleep(1000)", forked=True) as child:
        child.kill9()
        assert child.returncode == -signal.SIGKILL
    with PythonProcess("print('begun')\nimport time; time.sleep(1000)", forked=True) as child:
        child.wait_line("begun")
        child.stop()
        child.cont()
        child.terminate()
        assert child.wait() == -signal.SIGTERM


def test_no_child_outlives_the_tests() -> None:
    program = f"""
import os, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.harness.zygote import Forked
child = Forked("import time; time.sleep(1000)", ["x"], dict(os.environ), None, [0, 1, 2])
print(child.pid)
sys.stdin.read()
"""
    with PythonProcess(program) as tests:
        pid = int(tests.wait_line())
        wait_until(lambda: tests.returncode is not None)
    wait_until(lambda: not is_alive(pid))


def test_a_child_ends_while_others_go_on() -> None:
    with open(os.devnull, "r+b") as nothing:
        files = [nothing.fileno()] * 3
        children = [Forked(f"import sys; sys.exit({code})", ["x"], dict(os.environ), None, files) for code in range(5)]
    assert [child.wait() for child in children] == [0, 1, 2, 3, 4]

"""What the documentation says is so: its programs run, its commands end as told, its references are complete."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from runpy import run_module, run_path
from typing import Any

import pytest
import typer.main

import restante
import restante.http
from restante.cli.entry import app
from restante.cli.session import Code
from restante.core import errors
from restante.core.journal import COLUMNS
from restante.core.keys import NAMES
from restante.core.message import LIFECYCLE, JournalEvent, State
from restante.core.settings import JOURNAL_LEVELS, ClientSettings, QueueOptions, QueueSettings
from tests.docs.pages import ROOT, Page, all_pages
from tests.harness.servers import debian_binary
from tests.harness.zygote import run_forked

PAGES = all_pages()
BY_NAME = {page.name: page for page in PAGES}
API, SETTINGS, CLI, ERRORS = (BY_NAME[f"docs/reference/{name}.md"] for name in ("api", "settings", "cli", "errors"))
EXAMPLES = sorted(
    [path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "__init__"]
    + [path.parent.name for path in (ROOT / "examples").glob("*/__main__.py")]
)
#: How a program starts Spark: the active session is taken, so that all of them share the one of the tests.
STARTS_SPARK = "session()"
SPARK_EXAMPLES = [
    name
    for name in EXAMPLES
    if (ROOT / "examples" / f"{name}.py").exists() and STARTS_SPARK in (ROOT / "examples" / f"{name}.py").read_text()
]
#: Seconds one page's programs or commands may take together.
PATIENCE = 600
#: Members of public classes that are for the rooms above, not for users: the inner doors of ARCHITECTURE.md.
INNER_DOORS = BY_NAME["ARCHITECTURE.md"].text.partition("## Inner doors")[2].partition("\n## ")[0]


def inner_doors() -> set[tuple[str, str]]:
    """Class and member of each inner door; a message that is leased has those of a message."""
    found = set(re.findall(r"`(\w+)\.(\w+)`", INNER_DOORS))
    return found | {("LeasedMessage", member) for kind, member in found if kind == "Message"}


INTERNAL = {f"{name} of {kind}" for kind, name in inner_doors()} | {
    f"{name} of Bus"
    for name in ("handles", "handler_of", "records", "has_shared_records", "redis", "consumes_tasks", "note", "reply")
}


def named(page: Page) -> Any:
    return pytest.param(page, id=page.name)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty directory that has the examples, as a checkout would."""
    debian_binary()
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def environment_of_a_reader() -> dict[str, str]:
    """The environment without what tests set, and with the commands of this installation."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("RESTANTE_", "PYTHONPATH"))}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"
    return environment


def run(command: list[str], place: Path, *, expected: int = 0) -> str:
    """Runs a program as a reader would, in its own place; returns what it said."""
    environment = environment_of_a_reader()
    if command[0] in ("restante", "rsmqctl"):
        module = "restante.cli" if command[0] == "restante" else "restante.cli.rsmqctl"
        program = f"import sys; from {module} import main; sys.exit(main())"
        code, said, _ = run_forked(program, command, env=environment, cwd=place, merged=True)
        assert code == expected, f"{' '.join(command)} ended with {code}:\n{said[-4000:]}"
        return said
    done = subprocess.run(
        command,
        cwd=place,
        env=environment,
        timeout=PATIENCE,
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == expected, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-4000:]}"
    return done.stdout


# -- what runs -------------------------------------------------------------------------------------------------------


#: Runs the file that is its first argument with warnings as errors, and as if nobody had imported Restante before.
FRESH_RESTANTE = """
import runpy, sys, warnings
for name in [name for name in sys.modules if name.split(".")[0] == "restante"]:
    del sys.modules[name]
warnings.simplefilter("error")
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def written(page: Page, place: Path) -> Path:
    """The page's programs as one file."""
    program = place / f"{page.path.stem.lower().replace('-', '_')}_page.py"
    program.write_text(page.program())
    return program


@pytest.mark.parametrize("page", [named(one) for one in PAGES if one.program() and STARTS_SPARK not in one.program()])
def test_the_programs_of_a_page_run_in_their_order(page: Page, place: Path) -> None:
    # Forked, since a fresh interpreter would import the same libraries for every page. Restante itself is imported
    # anew, so that a page that forgets an import fails; the examples below begin with nothing imported.
    environment = environment_of_a_reader() | {"PYTHONPATH": str(Path(restante.__file__).parents[1])}
    code, said, _ = run_forked(FRESH_RESTANTE, [str(written(page, place))], env=environment, cwd=place, merged=True)
    assert code == 0, f"{page.name} ended with {code}:\n{said[-4000:]}"


@pytest.mark.parametrize("page", [named(page) for page in PAGES if page.project()])
def test_the_tests_of_a_project_on_a_page_pass(page: Page, place: Path) -> None:
    for name, text in page.project().items():
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(text)
    plugins = [f"-pno:{name}" for name in ("asyncio", "cacheprovider", "valkey")]  # not those of a reader
    warnings = ["-Werror", "-Wignore:Using `httpx` with"]  # Starlette's client prefers the successor of httpx
    said = run([sys.executable, "-m", "pytest", "-q", *warnings, *plugins, "."], place)
    assert " passed" in said


@pytest.fixture
def in_session(spark: Any, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process as a program finds its own, with a Spark session that is active and stays so."""
    monkeypatch.chdir(place)
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(type(spark), "stop", lambda self: None)
    for name in [name for name in os.environ if name.startswith("RESTANTE_")]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("in_session")
@pytest.mark.parametrize("page", [named(page) for page in PAGES if STARTS_SPARK in page.program()])
def test_the_programs_of_a_page_that_needs_spark_run_in_their_order(page: Page, place: Path) -> None:
    run_path(str(written(page, place)), run_name="__main__")


@pytest.mark.usefixtures("in_session")
@pytest.mark.parametrize("name", SPARK_EXAMPLES)
def test_an_example_that_needs_spark_runs_as_it_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    run_module(f"examples.{name}", run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("page", [named(page) for page in PAGES if page.commands()])
def test_the_commands_of_a_page_end_as_it_says(page: Page, place: Path) -> None:
    # One process keeps the server, so that each command joins it instead of starting its own.
    with restante.connect(directory=place / ".restante") as post:
        for name in ("orders", "calls", "greetings"):
            post.queue(name).configure(lease=30)
        post.queue("orders").send({"order": 0})
        assert post.queue("seen").receive() is None
        for command, code in page.commands():
            words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", command)]
            run(words, place, expected=code)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name not in SPARK_EXAMPLES])
def test_an_example_runs_as_it_is(name: str, place: Path) -> None:
    assert run([sys.executable, "-W", "error", "-m", f"examples.{name}"], place)


def test_the_shop_sends_and_its_handlers_ship(place: Path) -> None:
    with restante.connect(directory=place / ".restante") as post:
        run([sys.executable, "-m", "examples.shop"], place)
        assert post.queue("orders").send({"order": 9}, kind="order.placed")
        said = run(["restante", "consume", "examples.shop", "--stop-when-empty"], place)
        assert "shipped order" in said
        assert "receipt for order" in said


def test_the_first_program_of_the_readme_fits_on_the_first_screen() -> None:
    first = BY_NAME["README.md"].blocks("python")[0]
    assert len(first.text.splitlines()) <= 12
    assert BY_NAME["README.md"].text.index("make run") < BY_NAME["README.md"].text.index("make test") < 300


def test_every_block_of_python_is_python() -> None:
    for page in PAGES:
        for block in page.blocks("python"):
            ast.parse(block.text, f"{page.name}:{block.line}")


# -- what is complete ------------------------------------------------------------------------------------------------


def described(page: Page) -> list[str]:
    """The names a page's third-level headings describe."""
    found = (re.match(r"`(?:restante )?([\w.-]+)", text) for text in page.headings() if text.startswith("`"))
    return [match[1] for match in found if match]


def test_the_api_page_describes_exactly_what_is_public() -> None:
    assert sorted(described(API)) == sorted(restante.__all__)
    assert list(restante.__all__) == sorted(restante.__all__)
    for name in (*restante.aio.__all__, *restante.http.__all__):
        assert name in API.text


def test_the_old_name_of_the_client_is_an_alias_that_warns() -> None:
    with pytest.warns(DeprecationWarning, match=r"restante\.Client"):
        assert getattr(restante, "Post") is restante.Client  # noqa: B009 - type checkers do not know the alias


def default_of(value: Any) -> str:
    """A default as the page writes it: functions and long tuples as an ellipsis."""
    if value is ...:
        return "..."
    if callable(value) or (isinstance(value, tuple) and value):
        return "…"
    return repr(value)


def signature(name: str, function: Any, *, without: frozenset[str] = frozenset()) -> str:
    """Name and parameters without types."""
    parts: list[str] = []
    for one in inspect.signature(function).parameters.values():
        if one.name in {"self", "cls"} | without:
            continue
        if one.kind is one.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        marks = "**" if one.kind is one.VAR_KEYWORD else "*" if one.kind is one.VAR_POSITIONAL else ""
        parts.append(f"{marks}{one.name}" + ("" if one.default is one.empty else f"={default_of(one.default)}"))
    return f"{name}({', '.join(parts)})"


def members(kind: type) -> Iterator[tuple[str, Any]]:
    """What users of a class may use: what it and its parents in Restante define."""
    seen: set[str] = set()
    for parent in kind.__mro__:
        if not parent.__module__.startswith("restante."):
            continue
        for name, value in vars(parent).items():
            if not name.startswith("_") and name not in seen and f"{name} of {kind.__name__}" not in INTERNAL:
                seen.add(name)
                yield name, getattr(value, "__func__", value)


def section(page: Page, name: str) -> str:
    """The text below the heading that describes a name."""
    start = re.search(rf"^### `{re.escape(name)}\b.*$", page.text, re.MULTILINE)
    assert start is not None, f"{page.name} has no heading for {name}"
    return re.split(r"^##", page.text[start.start() + 3 :], maxsplit=1, flags=re.MULTILINE)[0]


@pytest.mark.parametrize("name", [name for name in restante.__all__ if name != "aio"])
def test_the_api_page_has_every_member_with_its_parameters(name: str) -> None:
    thing = getattr(restante, name)
    text = section(API, name)
    if not inspect.isclass(thing):
        assert f"`{signature(name, thing)}`" in text
        return
    if issubclass(thing, restante.RestanteError):
        return
    if issubclass(thing, restante.LeasedMessage):
        text += section(API, "Message")
    if name in ("Consumer", "Sweeper", "Admin"):
        first, _, rest = signature(name, thing.__init__).partition("(")
        assert f"`{first}({rest}`" in text
    for member, value in members(thing):
        if inspect.isfunction(value):
            assert f"`{signature(member, value)}`" in text, member
        elif member not in QueueOptions.__annotations__ or name != "QueueSettings":
            # A setting is described on its own page.
            assert f"`{member}`" in text, member


def test_the_asyncio_queue_has_the_parameters_of_its_synchronous_namesake() -> None:
    pairs = (
        (restante.Queue, restante.aio.AsyncQueue),
        (restante.LeasedMessage, restante.aio.AsyncLeasedMessage),
        (restante.Client, restante.aio.AsyncClient),
    )
    for sync, other in pairs:
        twins = dict(members(other))
        for name, value in members(sync):
            if inspect.isfunction(value):
                assert signature(name, value) == signature(name, twins[name])
    assert signature("connect", restante.connect) == signature("connect", restante.aio.connect)


def rows(page: Page) -> dict[str, list[str]]:
    """The rows of a page's tables by their first cell, where that is one word of code."""
    found = (re.split(r"(?<!\\) \| ", line.strip("| ")) for line in page.text.splitlines() if line.startswith("| `"))
    return {cells[0].strip("`"): cells for cells in found}


def test_the_settings_page_has_every_option_with_its_default() -> None:
    told = rows(SETTINGS)
    defaults = QueueSettings()
    for name in QueueOptions.__annotations__:
        value = getattr(defaults, name)
        if isinstance(value, restante.RetryPolicy):
            assert value == restante.exponential(1, cap=600)
            continue
        shown = "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
        assert told[name][1].strip("`") == shown, name
    for field in dataclasses.fields(ClientSettings):
        value = field.default
        assert told[field.name][1] == (f"{value:g}" if isinstance(value, float) else str(value)), field.name
    known = {*QueueOptions.__annotations__, *(field.name for field in dataclasses.fields(ClientSettings))}
    environment = {name for name in told if name.isupper()}
    assert set(told) - environment == known


def test_the_command_line_page_has_every_command_option_and_code() -> None:
    command = typer.main.get_command(app)
    commands: dict[str, Any] = command.commands  # type: ignore[attr-defined]  # a group, in Typer's own words
    inner: dict[str, Any] = commands.pop("pipeline").commands
    commands |= {f"pipeline {name}": one for name, one in inner.items()}
    told = {name for heading in CLI.headings() for name in re.findall(r"`restante ((?:pipeline )?[\w-]+)", heading)}
    assert told == set(commands)
    for name, one in commands.items():
        text = section(CLI, f"restante {name}") if f"### `restante {name}" in CLI.text else CLI.text
        for option in one.params:
            for spelling in option.opts:
                if spelling.startswith("--"):
                    assert spelling in text, f"{name} {spelling}"
    for option in command.params:
        for spelling in option.opts:
            assert spelling in CLI.text
    for code in Code:
        assert re.search(rf"^\| {code.value} \| ", CLI.text, re.MULTILINE)


def test_the_spark_page_is_what_the_code_says() -> None:
    made = run_path(str(ROOT / "docs" / "spark_reference.py"))["page"]()
    assert BY_NAME["docs/reference/spark.md"].text == made, "run: python docs/spark_reference.py"


def test_the_http_page_is_what_the_server_says() -> None:
    made = run_path(str(ROOT / "docs" / "http_reference.py"))["page"]()
    assert BY_NAME["docs/reference/http.md"].text == made, "run: python docs/http_reference.py"


def test_the_errors_page_has_the_tree_and_every_error() -> None:
    known = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, restante.RestanteError)
    }
    assert set(rows(ERRORS)) == set(known)
    assert set(known) <= set(restante.__all__)
    tree = ERRORS.blocks("")[0].text
    for name, value in known.items():
        line = next(line for line in tree.splitlines() if re.search(rf"\b{name}\b", line))
        depth = sum(issubclass(one, restante.RestanteError) for one in value.__mro__) - 1
        assert len(re.match(r"[│├└─ ]*", line)[0]) == 4 * depth, name  # type: ignore[index]  # matches at least nothing


def test_the_journal_and_key_pages_have_every_column_event_and_key() -> None:
    journal, keys = BY_NAME["docs/reference/journal.md"], BY_NAME["docs/reference/keys.md"]
    assert re.findall(r"^\| \d+ \| `(\w+)`", journal.text, re.MULTILINE) == list(COLUMNS)
    for event in JournalEvent:
        assert f"`{event.value}`" in journal.text
    assert set(rows(keys)) == {*NAMES, "leases:<consumer>", "verdicts:<consumer>", "batch:<id>", "members:<id>"}
    assert [level for level in rows(journal) if level in JOURNAL_LEVELS] == list(JOURNAL_LEVELS)
    assert all(f"`{level}`" in rows(SETTINGS)["journal"][2] for level in JOURNAL_LEVELS)


def diagram() -> list[str]:
    """The lifecycle as the lines of a Mermaid state diagram."""

    def word(state: State | None) -> str:
        return "[*]" if state is None else state.value

    order = ["[*]", *(state.value for state in State)]
    arrows: dict[tuple[int, int], list[str]] = {}
    for row in LIFECYCLE:
        for source in row.sources:
            for target in row.targets:
                arrows.setdefault((order.index(word(source)), order.index(word(target))), []).append(row.verb)
    drawn = [f"    {order[a]} --> {order[b]}: {', '.join(verbs)}" for (a, b), verbs in sorted(arrows.items())]
    return ["stateDiagram-v2", *drawn]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "docs/explain/lifecycle.md"])
def test_the_state_diagram_is_the_lifecycle(name: str) -> None:
    assert BY_NAME[name].blocks("mermaid")[0].text.splitlines() == diagram()


def test_the_lifecycle_page_has_every_row() -> None:
    text = BY_NAME["docs/explain/lifecycle.md"].text
    for row in LIFECYCLE:
        assert f"| {row.verb} → {row.event.value} |" in text
        assert f"| {row.who} | {row.condition} |" in text


def test_every_promise_names_tests_that_are_there() -> None:
    told = re.findall(r"^\| (P\d+) \| (.+) \|$", BY_NAME["docs/explain/guarantees.md"].text, re.MULTILINE)
    assert [promise for promise, _ in told] == [f"P{number}" for number in range(1, 11)]
    for _, tests in told:
        for path in re.findall(r"`([^`]+)`", tests):
            assert (ROOT / path).exists(), path


THREATS = BY_NAME["docs/explain/threat-model.md"]


def named_tests(path: str) -> set[str]:
    """The names of a file's tests, with their classes."""
    found: set[str] = set()
    for node in ast.parse((ROOT / path).read_text()).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        prefix = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
        found |= {prefix + one.name for one in inner if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)}
    return found


def test_every_line_of_the_threat_model_names_a_test_that_is_there() -> None:
    lines = [line for line in THREATS.text.splitlines() if line.startswith("| ") and not line.startswith("| Threat")]
    told = [line for line in lines if not line.startswith("| `") and not line.startswith("| Route")]
    assert len(told) > 30
    for line in told:
        path, _, name = re.findall(r"`(tests/[^`]+)`", line.split(" | ")[-1])[0].partition("::")
        assert name in named_tests(path), line


def test_the_table_of_routes_and_roles_is_what_the_server_says() -> None:
    made = run_path(str(ROOT / "docs" / "access_table.py"))["page"]()
    assert THREATS.text == made, "run: python docs/access_table.py"


# -- the shape of the pages ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", [named(page) for page in PAGES if page.links()])
def test_the_links_of_a_page_lead_somewhere(page: Page) -> None:
    for link in page.links():
        target, _, anchor = link.partition("#")
        path = (page.path.parent / target).resolve() if target else page.path
        assert path.exists(), link
        if anchor:
            assert anchor in Page(path).anchors(), link


def test_pages_keep_to_their_sizes() -> None:
    assert len(BY_NAME["ARCHITECTURE.md"].text.splitlines()) <= 200
    decisions = [page for page in PAGES if re.fullmatch(r"docs/decisions/\d{4}-.+\.md", page.name)]
    assert [page.path.name[:4] for page in decisions] == [f"{n:04}" for n in range(1, len(decisions) + 1)]
    listed = BY_NAME["docs/decisions/README.md"].links()
    assert listed == [page.path.name for page in decisions]
    for page in decisions:
        assert len(page.text.splitlines()) <= 40
        assert page.headings()[1:] == ["Problem", "Solution", "Price"]
    assert (ROOT / "docs/images/demo.svg").stat().st_size < 150_000

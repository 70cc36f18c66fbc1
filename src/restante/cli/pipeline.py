"""Commands of the data pipeline: run, status, report, audit, replay. Only run, audit and replay start Spark."""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from restante.cli import render
from restante.cli.session import Code, Context, Session, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.core.errors import InvalidInput
from restante.core.journal_reader import JournalReader

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from restante.spark.audit import Findings
    from restante.spark.coverage import Coverage
    from restante.spark.pipeline import Step, Summary
    from restante.spark.registration import Registration
    from restante.spark.replay import Plan

LakeDir = Annotated[str, typer.Option("--lake", metavar="DIR", help="The lake: a folder, s3://… or hdfs://…")]
Master = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Spark's master (local[*], spark://…, k8s://…), or sc://… for Connect."),
]
Queues = Annotated[str, typer.Option(metavar="NAMES", help="Queues, separated by commas; * and ? match.")]
Reader = Annotated[str, typer.Option(metavar="NAME", help="The name of the reader that the journals keep lines for.")]
#: Problems listed on a terminal; --json lists all.
SHOWN = 20

pipeline = typer.Typer(help="The data pipeline on Spark: journal to lake, report, audit, replay.", no_args_is_help=True)


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for command in (run, status, report, audit, replay):
        pipeline.command()(command)
    app.add_typer(pipeline, name="pipeline", rich_help_panel="Data")


def _need_spark() -> None:
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise InvalidInput("the pipeline needs Spark: pip install 'restante[spark]'")


@contextmanager
def _spark(session: Session, master: str | None, registration: Registration | None = None) -> Iterator[SparkSession]:
    """A Spark session for the command. If it does not start, the journals keep no lines for it."""
    _need_spark()
    from restante.spark.session import session as start

    with session.err.status("starting Spark") if session.err.is_terminal and not session.json else _quiet():
        remote = master if master and master.startswith("sc://") else None
        try:
            spark = start(master=None if remote else master, remote=remote)
        except BaseException:
            if registration is not None:
                registration.withdraw()
            raise
    try:
        yield spark
    finally:
        spark.stop()


@contextmanager
def _quiet() -> Iterator[None]:
    yield


def _lag(session: Session, queues: str, reader: str) -> dict[str, dict[str, int]]:
    """Per queue: the lines of its journal, the reader's position and lag, and the lost lines."""
    from restante.spark.options import Options

    places = JournalReader(session.post).places(Options(queues=queues).matching(session.admin.queues()))
    return {
        name: {
            "last": place.last,
            "read": place.readers.get(reader, 0),
            "lag": place.last - max(place.readers.get(reader, 0), place.floor),
            "lost": place.lost,
            "incarnation": place.incarnation,
        }
        for name, place in places.items()
    }


def run(
    context: Context,
    lake: LakeDir,
    once: Annotated[bool, typer.Option("--once/--continuous", help="Exit when all is read, or continue.")] = True,
    master: Master = None,
    queues: Queues = "*",
    reader: Reader = "pipeline",
    batch_rows: Annotated[int, typer.Option(metavar="N", help="Journal lines of one micro-batch.")] = 250_000,
    refresh_seconds: Annotated[
        float, typer.Option(metavar="S", help="Seconds between two updates of silver and gold.")
    ] = 60.0,
    keep_bronze: Annotated[int, typer.Option(metavar="DAYS", help="Days to keep bronze; 0 keeps all.")] = 0,
    keep_silver: Annotated[int, typer.Option(metavar="DAYS", help="Days to keep silver; 0 keeps all.")] = 0,
    compact_from: Annotated[int, typer.Option(metavar="N", help="Compact from this number of batches on.")] = 16,
    data_loss: Annotated[bool, typer.Option("--allow-loss", help="Continue after lost journal lines.")] = False,
    report_to: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Also write the report, after every update.")
    ] = None,
) -> None:
    """Read the journals into the lake: bronze, silver, gold. Safe to kill at any moment and to start again."""
    session = context.obj
    _need_spark()
    from restante.spark.lake import Lake
    from restante.spark.pipeline import Pipeline, PipelineOptions
    from restante.spark.progress import RunProgress
    from restante.spark.registration import Registration

    lag = sum(row["lag"] for row in _lag(session, queues, reader).values())
    stop = threading.Event()
    status = RunProgress(Lake(lake))
    with (
        Registration(session.post.url, queues=queues, reader=reader) as registration,
        status.running("starting Spark", report=report_to is not None),
        _spark(session, master, registration) as spark,
        stopping_by_signal(stop.set),
        render.progress(session.err, quiet=session.json) as progress,
    ):
        bar = progress.add_task("bronze", total=lag or None)

        def show_progress(step: Step) -> None:
            total = step.total or (lag if step.name == "bronze" else None)
            progress.update(bar, description=step.name, completed=step.done, total=total)

        options = PipelineOptions(
            url=session.post.url,
            lake=lake,
            queues=queues,
            reader=reader,
            batch_rows=batch_rows,
            fail_on_data_loss=not data_loss,
            compact_from=compact_from,
            keep_bronze_days=keep_bronze,
            keep_silver_days=keep_silver,
            refresh_seconds=refresh_seconds,
            report=str(report_to or ""),
        )
        work = Pipeline(spark, options, progress=show_progress, status=status)
        summary = work.run_once(stop=stop.is_set) if once else work.run_continuously(stop=stop.is_set)
    _show_summary(session, lake, summary)


def _show_summary(session: Session, lake: str, summary: Summary) -> None:
    if session.json:
        session.emit({"lake": lake, **asdict(summary), "dates": [day.isoformat() for day in summary.dates]})
        return
    table = Table(title=f"pipeline → {lake}", title_justify="left")
    for heading in ("step", "what", "seconds"):
        table.add_column(heading, justify="right" if heading == "seconds" else "left")
    rate = summary.rows / summary.seconds["bronze"] if summary.seconds.get("bronze") and summary.rows else 0
    what = {
        "bronze": f"{summary.rows:,} rows in {summary.batches} batches" + (f", {rate:,.0f}/s" if rate else ""),
        "silver and gold": ", ".join(map(str, summary.dates)) or "nothing new",
        "compact": f"{summary.compacted} batches",
        "retention": f"{summary.removed} folders removed",
    }
    for step, text in what.items():
        table.add_row(step, text, f"{summary.seconds.get(step, 0.0):.1f}")
    session.out.print(table)
    _show_incomplete(session, summary.incomplete)


def _show_incomplete(session: Session, journals: list[Coverage]) -> None:
    """Prints the lines that the lake lacks, per journal."""
    for journal in journals[:SHOWN]:
        for sentence in journal.sentences():
            session.out.print(f"[red]●[/] {journal.queue}: {sentence}", highlight=False)
    if len(journals) > SHOWN:
        session.out.print(f"and {len(journals) - SHOWN:,} more journals; --json lists them")


def status(context: Context, lake: LakeDir, queues: Queues = "*", reader: Reader = "pipeline") -> None:
    """Show the pipeline's progress: lag and lost lines per queue, last run, size of each table. Needs no Spark."""
    session = context.obj
    _need_spark()
    from restante.spark.coverage import coverage
    from restante.spark.lake import Lake

    place = Lake(lake)
    state = place.state()
    lag = _lag(session, queues, reader)
    sizes = place.sizes()
    incomplete = [journal for journal in coverage(state) if not journal.whole]
    begins = {(journal.queue, journal.incarnation): journal.first for journal in coverage(state)}
    for name, row in lag.items():
        row["begins"] = begins.get((name, row.pop("incarnation")), 0)
    if session.json:
        tables = {name: dict(zip(("rows", "files", "bytes"), size, strict=True)) for name, size in sizes.items()}
        document = {"lake": lake, "reader": reader, "queues": lag, "tables": tables, **asdict(state)}
        session.emit({**document, "incomplete": [asdict(journal) for journal in incomplete]})
        return
    table = Table(title="journals", title_justify="left")
    for heading in ("queue", "lines", "read", "lag", "lost", "lake begins at"):
        table.add_column(heading, justify="left" if heading == "queue" else "right")
    for name, row in lag.items():
        lost = f"[red]{row['lost']:,}[/]" if row["lost"] else "0"
        begin = "" if not row["begins"] else "1" if row["begins"] == 1 else f"[red]{row['begins']:,}[/]"
        table.add_row(name, f"{row['last']:,}", f"{row['read']:,}", f"{row['lag']:,}", lost, begin)
    session.out.print(table)
    _show_incomplete(session, incomplete)
    table = Table(title=f"lake {lake}", title_justify="left")
    for heading in ("table", "rows", "files", "size"):
        table.add_column(heading, justify="left" if heading == "table" else "right")
    for name, (rows, files, size) in sizes.items():
        table.add_row(name, f"{rows:,}", f"{files:,}", f"{size / 1e6:,.1f} MB")
    session.out.print(table)
    last = state.last_run
    session.out.print(
        f"last run {last.get('ended_at', 'never')}, {last.get('rows', 0):,} rows in {last.get('batches', 0)} batches; "
        f"batches refreshed to {state.folded}, compacted to {state.compacted}; too late {state.too_late:,}"
    )


def report(
    context: Context,
    lake: LakeDir,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = Path("report.html"),
    since: Annotated[datetime | None, typer.Option(help="Only from this time on (UTC).")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only before this time (UTC).")] = None,
) -> None:
    """Write a page with plots and tables of the lake. Needs no Spark session and no server."""
    session = context.obj
    _need_spark()
    from restante.spark.report import write

    page = write(lake, out, since=_utc(since), until=_utc(until))
    if session.json:
        session.emit(
            {
                "path": str(page.path),
                "bytes": page.size,
                "queues": page.queues,
                "adds_up": page.adds_up,
                "wrong": [list(finding) for finding in page.wrong],
                "warnings": [list(finding) for finding in page.warnings],
            }
        )
        return
    for queue, sentence in page.wrong:
        session.out.print(f"[red]●[/] {queue + ': ' if queue else ''}{sentence}", highlight=False)
    session.note(f"{page.path}: {page.size / 1000:,.0f} kB, {page.queues} queues")


def _utc(moment: datetime | None) -> datetime | None:
    return moment.replace(tzinfo=UTC) if moment is not None and moment.tzinfo is None else moment


def audit(
    context: Context,
    lake: LakeDir,
    master: Master = None,
    queues: Queues = "*",
    offline: Annotated[bool, typer.Option("--offline", help="Audit the lake alone, without the server.")] = False,
) -> None:
    """Check that every message sent has a fate, and that Redis agrees. Exit code 5 if the numbers do not add up."""
    session = context.obj
    _need_spark()
    from restante.spark.audit import Audit

    with _spark(session, master) as spark:
        findings = Audit(spark, lake, None if offline else session.post, queues=queues).run()
    _show_findings(session, findings)
    if not findings.adds_up:
        raise typer.Exit(Code.DANGER)


def _show_findings(session: Session, findings: Findings) -> None:
    if session.json:
        windows = [{**row, "hour": row["hour"].isoformat()} for row in findings.windows]
        session.emit({**asdict(findings), "windows": windows, "adds_up": findings.adds_up})
        return
    from restante.spark.schemas import EQUATION, FATES

    columns = ("queue", "hour", "sent", *FATES, "difference")
    table = Table(title=EQUATION, title_justify="left")
    for heading in columns:
        table.add_column(heading, justify="left" if heading in ("queue", "hour") else "right")
    for row in findings.windows:
        cells = [f"{row[name]:,}" if isinstance(row[name], int) else str(row[name]) for name in columns]
        table.add_row(*cells, style="red" if row["difference"] else "")
    session.out.print(table)
    for trouble in findings.troubles[:SHOWN]:
        session.out.print(
            f"[red]{trouble.what}[/] {trouble.queue} {trouble.message_id}: journal {trouble.journal_state or '–'}, "
            f"Redis {trouble.redis_state or '–'}; last {trouble.last_event or '–'} {trouble.last_at}",
            highlight=False,
        )
    if findings.count > SHOWN:
        session.out.print(f"and {findings.count - SHOWN:,} more; --json lists them")
    for queue, lines in findings.gaps.items():
        word = "lacks" if lines > 0 else "has twice"
        session.out.print(f"[red]the lake {word} {abs(lines):,} journal lines of {queue}[/]")
    for queue, why in findings.skipped.items():
        session.out.print(f"{queue} was not audited: {why}")
    if findings.moving:
        session.note(f"{findings.moving:,} messages changed meanwhile and were left out")
    session.note("everything adds up" if findings.adds_up else f"{findings.count:,} messages do not add up")


def replay(
    context: Context,
    lake: LakeDir,
    where: Annotated[str, typer.Option(metavar="SQL", help="Condition on the columns of the table messages.")] = "",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="The replay's name; the same name continues it.")
    ] = None,
    fate: Annotated[
        str | None,
        typer.Option(metavar="FATES", help="Fates: acked, deleted, cancelled, or dead,expired (default)."),
    ] = None,
    to: Annotated[str, typer.Option(metavar="QUEUE", help="Send copies to this queue instead.")] = "",
    rate: Annotated[float, typer.Option(metavar="N", help="At most N messages per second.")] = 0.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and send nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    master: Master = None,
) -> None:
    """Replay messages selected by SQL. Shows the plan first; each message is sent once, even after interruptions."""
    session = context.obj
    _need_spark()
    from restante.spark.replay import COPY, DEFAULT_FATES, IN_PLACE, Replay

    if not where and name is None:
        raise WrongUsage("select messages: --where \"error_class = 'Timeout'\"; or continue a replay with --name")
    stop = threading.Event()
    with _spark(session, master) as spark:
        work = Replay(spark, lake, session.post)
        plan = work.known(name) if name else None
        if plan is None:
            if not where:
                raise WrongUsage(f"there is no replay {name} to continue: give --where to begin it")
            fates = tuple(word.strip() for word in fate.split(",")) if fate else DEFAULT_FATES
            plan, rows = work.plan(where, fates=fates, to=to, name=name)
            _show_plan(session, plan)
            if dry_run or not plan.total(IN_PLACE, COPY):
                _end_replay(session, plan, 0, dry_run)
                return
            count = plan.total(IN_PLACE, COPY)
            session.confirm(f"Replay {count:,} messages as {plan.name}?", yes=yes, needed=True)
            plan = work.freeze(plan, rows)
        else:
            asked = (where or plan.where, fate or ",".join(plan.fates), to or plan.to)
            if asked != (plan.where, ",".join(plan.fates), plan.to):
                planned = f"--where {plan.where!r} --fate {','.join(plan.fates)}" + (
                    f" --to {plan.to}" if plan.to else ""
                )
                raise WrongUsage(
                    f"the replay {name} was planned with {planned}: leave these out, or choose another name"
                )
            _show_plan(session, plan)
        with stopping_by_signal(stop.set), render.progress(session.err, quiet=session.json) as progress:
            bar = progress.add_task(plan.name, total=plan.total(IN_PLACE, COPY))
            done = work.run(
                plan,
                rate=rate,
                stop=stop.is_set,
                progress=lambda state: progress.update(
                    bar, completed=state.done, total=state.total, description=f"{plan.name} {state.rate:,.0f}/s"
                ),
            )
    _end_replay(session, plan, done, False)


def _show_plan(session: Session, plan: Plan) -> None:
    if session.json:
        return
    table = Table(title=f"replay {plan.name}: {plan.where or 'all'}", title_justify="left")
    for heading in ("queue", "error", "what happens", "to", "messages"):
        table.add_column(heading, justify="right" if heading == "messages" else "left")
    words = {
        "in place": "replayed in place",
        "copy": "sent again as a copy",
        "waiting": "skipped: it waits already",
        "no payload": "skipped: its payload was not kept",
    }
    for row in plan.counts:
        table.add_row(row["queue"], row["error_class"], words[row["action"]], row["target"], f"{row['messages']:,}")
    session.out.print(table)


def _end_replay(session: Session, plan: Plan, done: int, dry_run: bool) -> None:
    finished = len(plan.done) == plan.parts
    if session.json:
        document: dict[str, Any] = asdict(plan)
        session.emit({**document, "replayed": done, "dry_run": dry_run, "finished": finished and not dry_run})
    elif dry_run:
        session.note(f"nothing was sent; to send: restante pipeline replay --lake … --name {plan.name} --where …")
    elif not finished:
        session.note(f"stopped after {done:,}; continue with: restante pipeline replay --lake … --name {plan.name}")
    else:
        session.note(f"{done:,} messages replayed as {plan.name}")
    if not done and not dry_run and not finished:
        raise typer.Exit(Code.NOTHING)

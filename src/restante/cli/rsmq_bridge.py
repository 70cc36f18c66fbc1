"""The command that carries messages between an RSMQ queue and a native one: rsmq bridge.

Killed or stopped at any moment it leaves nothing half done; while the server is away it pauses and goes on.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from restante.cli.rsmq import connected, rsmq
from restante.cli.session import Context, WrongUsage, stopping
from restante.rsmq.bridge import LEASE, LONGEST, Bridge


def add_to(app: typer.Typer) -> None:
    """Registers the command beside RSMQ's others, which are part of the program already."""
    rsmq.command("bridge")(bridge)


def bridge(
    context: Context,
    queue: Annotated[str, typer.Option("--queue", "-q", metavar="QUEUE", help="The RSMQ queue; it must be there.")],
    to: Annotated[str, typer.Option("--to", metavar="QUEUE", help="The native queue.")],
    back: Annotated[bool, typer.Option("--back", help="From the native queue into the RSMQ queue.")] = False,
    once: Annotated[bool, typer.Option("--once", help="End when nothing is left to carry.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="A text that is JSON arrives as the value it is.")] = False,
    realtime: Annotated[bool, typer.Option("--realtime", help="With --back: announce each on RSMQ's channel.")] = False,
    lease: Annotated[
        int, typer.Option(min=1, max=LONGEST, metavar="SECONDS", help="How late a message is that a kill interrupts.")
    ] = LEASE,
) -> None:
    """Carry messages of an RSMQ queue into a native queue, or back, each once, until stopped."""
    session = context.obj
    if decode and back:
        raise WrongUsage("--decode is for the way into the native queue: back, a value is written as JSON anyway")
    if realtime and not back:
        raise WrongUsage("--realtime is for the way back: into the native queue nobody listens to RSMQ's channel")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    with connected(context) as client:
        made = Bridge(
            client.client,
            queue,
            to,
            namespace=client.namespace,
            back=back,
            decode=decode,
            realtime=realtime,
            lease=lease,
        )
        way = f"{to} → rsmq:{queue}" if back else f"rsmq:{queue} → {to}"
        if not once:
            session.note(f"carrying {way}; Ctrl-C ends it")
        with stopping(made.stop):
            done = made.drain() if once else made.run()
    if session.json:
        return session.emit({"moved": done.moved, "repeated": done.repeated, "refused": done.refused})
    session.note(f"{way}: {done.moved} moved, {done.repeated} had arrived before, {done.refused} refused")
    return None

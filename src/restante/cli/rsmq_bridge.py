"""The command rsmq bridge: moves messages between an RSMQ queue and a native queue.

On failure it leaves no message half moved, even if it is killed; while the server is away it pauses.
"""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

from restante.cli.rsmq import connected, rsmq
from restante.cli.session import Context, WrongUsage
from restante.core.consume import stopping_by_signal
from restante.rsmq.bridge import LEASE, LONGEST, Bridge


def add_to(app: typer.Typer) -> None:
    """Registers the command in the group `rsmq`."""
    rsmq.command("bridge")(bridge)


def bridge(
    context: Context,
    queue: Annotated[str, typer.Option("--queue", "-q", metavar="QUEUE", help="The RSMQ queue; it must exist.")],
    to: Annotated[str, typer.Option("--to", metavar="QUEUE", help="The native queue.")],
    back: Annotated[bool, typer.Option("--back", help="Move from the native queue into the RSMQ queue.")] = False,
    once: Annotated[bool, typer.Option("--once", help="Exit when no messages are left to move.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode texts that are JSON.")] = False,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="With --back: announce each message on RSMQ's channel.")
    ] = False,
    lease: Annotated[
        int,
        typer.Option(
            min=1, max=LONGEST, metavar="SECONDS", help="How late a message is if the bridge is killed with it."
        ),
    ] = LEASE,
) -> None:
    """Move messages of an RSMQ queue into a native queue, or back, each once, until stopped."""
    session = context.obj
    if decode and back:
        raise WrongUsage("--decode does not work with --back: values are always written as JSON into the RSMQ queue")
    if realtime and not back:
        raise WrongUsage("--realtime needs --back: it announces messages on the channel of the RSMQ queue")
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(message)s")
    with connected(context) as client:
        mover = Bridge(
            client.client,
            queue,
            to,
            namespace=client.namespace,
            back=back,
            decode=decode,
            realtime=realtime,
            lease=lease,
        )
        route = f"{to} → rsmq:{queue}" if back else f"rsmq:{queue} → {to}"
        if not once:
            session.note(f"moving {route}; Ctrl-C to stop")
        with stopping_by_signal(mover.stop):
            done = mover.drain() if once else mover.run()
    if session.json:
        return session.emit({"moved": done.moved, "repeated": done.repeated, "refused": done.refused})
    session.note(f"{route}: {done.moved} moved, {done.repeated} moved before, {done.refused} refused")
    return None

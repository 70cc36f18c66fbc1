"""Commands for the tokens of the HTTP API: token create, ls, revoke."""

from __future__ import annotations

from typing import Annotated

import typer

from restante.cli import texts
from restante.cli.session import Context, Session, WrongUsage

token = typer.Typer(name="token", no_args_is_help=True, help="Tokens of the HTTP API: who may use it, and for what.")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for name, command in (("create", create), ("ls", ls), ("revoke", revoke)):
        token.command(name)(command)
    app.add_typer(token, rich_help_panel="Operate")


def _tokens(session: Session):  # type: ignore[no-untyped-def]  # the room is imported only where it is installed
    try:
        from restante.server.access import Tokens
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the server needs {error.name}: pip install 'restante[server]'") from None
    return Tokens(session.post)


def create(
    context: Context,
    name: Annotated[str, typer.Argument(help="Whom or what it is for; the journal shows it.")],
    role: Annotated[
        list[str], typer.Option("--role", "-r", help="read, send, consume or operate; may be given several times.")
    ],
) -> None:
    """Make a token and show it, once. From the first token on, the server asks everybody for one."""
    session = context.obj
    made, text = _tokens(session).create(name, role)
    session.admin.note("create token", detail=f"{name}: {', '.join(sorted(made.roles))}")
    if session.json:
        return session.emit({**made.as_dict(), "token": text})
    session.note(f"token {name} may {', '.join(sorted(made.roles))}; it is shown this once:")
    session.out.print(text, markup=False, soft_wrap=True)
    return None


def ls(context: Context) -> None:
    """List the tokens, without their secrets."""
    session = context.obj
    found = _tokens(session).list()
    if session.json:
        return session.emit({"tokens": [one.as_dict() for one in found]})
    if not found:
        session.nothing("no tokens: the server answers to this machine alone, and asks nobody")
    made = texts.table("name", "roles", "id", "created")
    for one in found:
        made.add_row(one.name, ", ".join(sorted(one.roles)), one.id, f"{one.created_at:%Y-%m-%d %H:%M}")
    session.out.print(made)
    return None


def revoke(context: Context, name: Annotated[str, typer.Argument(help="The token's name or id.")]) -> None:
    """End a token, and every browser that signed in with it."""
    session = context.obj
    gone = _tokens(session).revoke(name)
    session.admin.note("revoke token", detail=gone.name)
    if session.json:
        return session.emit({"revoked": gone.as_dict()})
    session.note(f"token {gone.name} is revoked")
    return None

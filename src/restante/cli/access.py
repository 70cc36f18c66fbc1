"""Commands for who may do what: tokens of the HTTP API (token create, ls, rotate, revoke) and users of Redis (acl)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from restante.cli import render
from restante.cli.arguments import parse_duration
from restante.cli.session import Context, Session, WrongUsage
from restante.core.acl import RedisRole, add_rights, rules, set_user
from restante.core.names import valid_name

Expires = Annotated[
    float | None, typer.Option(parser=parse_duration, metavar="TIME", help="It ends by itself so long from now.")
]
token = typer.Typer(name="token", no_args_is_help=True, help="Tokens of the HTTP API: who may use it, and for what.")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for name, command in (("create", create), ("ls", ls), ("rotate", rotate), ("revoke", revoke)):
        token.command(name)(command)
    app.add_typer(token, rich_help_panel="Operate")
    app.command("acl", rich_help_panel="Operate")(acl)


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
    expires: Expires = None,
) -> None:
    """Make a token and show it, once. From the first token on, the server asks everybody for one."""
    session = context.obj
    made, text = _tokens(session).create(name, role, expires=expires)
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
    made = render.table("name", "roles", "id", "created", "expires")
    for one in found:
        ends = "never" if one.expires_at is None else f"{one.expires_at:%Y-%m-%d %H:%M}"
        made.add_row(one.name, ", ".join(sorted(one.roles)), one.id, f"{one.created_at:%Y-%m-%d %H:%M}", ends)
    session.out.print(made)
    return None


def rotate(
    context: Context,
    name: Annotated[str, typer.Argument(help="The token's name or id.")],
    overlap: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="The old text works so long more.")
    ] = 3600.0,
    expires: Expires = None,
) -> None:
    """Give a token a new secret and show it, once. The old one works for a while, then it ends with its browsers."""
    session = context.obj
    made, text = _tokens(session).rotate(name, overlap=overlap, expires=expires)
    session.admin.note("rotate token", detail=made.name)
    if session.json:
        return session.emit({**made.as_dict(), "token": text})
    session.note(
        f"token {made.name} has a new text; it is shown this once, and the old one works for {overlap:g} s more:"
    )
    session.out.print(text, markup=False, soft_wrap=True)
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


def _password(given: str | None) -> str | None:
    """The password from standard input; on the command line every user of the machine could read it."""
    if given is None:
        return None
    if given != "-":
        raise WrongUsage("give the password on standard input and say --password -")
    text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise WrongUsage("standard input has no password")
    return text


def acl(
    context: Context,
    role: Annotated[list[RedisRole], typer.Option("--role", "-r", help="What the user is for; may be repeated.")],
    user: Annotated[str | None, typer.Option(metavar="NAME", help="The user's name; else made of the roles.")] = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="QUEUE", help="Only this queue; may be repeated. Else all queues.")
    ] = None,
    password: Annotated[
        str | None, typer.Option(metavar="-", help="Read the password from standard input; its hash is printed.")
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add the rights to those the user has, as before an upgrade of Restante.")
    ] = False,
) -> None:
    """Print the command that makes a Redis user with the least rights for a role. Redis 7, Valkey. Asks no server."""
    session = context.obj
    roles = list(dict.fromkeys(role))
    queues = [valid_name(one) for one in queue or ()]
    name = valid_name(user if user is not None else f"restante-{'-'.join(roles)}", "user")
    if add and (user is None or password is not None):
        raise WrongUsage("--add needs --user, and leaves the password as it is")
    line = add_rights(name, roles, queues) if add else set_user(name, roles, queues, _password(password))
    if session.json:
        made = {"user": name, "roles": roles, "queues": queues, "rules": rules(roles, queues), "command": line}
        return session.emit(made)
    if password is None and not add:
        session.note("put the SHA-256 of the password where the line says so, or give the password: --password -")
    typer.echo(line)
    return None

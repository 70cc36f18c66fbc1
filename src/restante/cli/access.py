"""Commands for access rights: tokens of the HTTP API (token create, ls, rotate, revoke) and Redis users (acl)."""

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
    float | None, typer.Option(parser=parse_duration, metavar="TIME", help="The token expires after this time.")
]
token = typer.Typer(name="token", no_args_is_help=True, help="Tokens of the HTTP API: who may use it, and for what.")


def add_to(app: typer.Typer) -> None:
    """Registers the commands."""
    for name, command in (("create", create), ("ls", ls), ("rotate", rotate), ("revoke", revoke)):
        token.command(name)(command)
    app.add_typer(token, rich_help_panel="Operate")
    app.command("acl", rich_help_panel="Operate")(acl)


def _tokens(session: Session):  # type: ignore[no-untyped-def]  # the server room is imported only if it is installed
    try:
        from restante.server.access import Tokens
    except ModuleNotFoundError as error:
        raise WrongUsage(f"the server needs {error.name}: pip install 'restante[server]'") from None
    return Tokens(session.post)


def create(
    context: Context,
    name: Annotated[str, typer.Argument(help="Who or what uses the token; the journal shows it.")],
    role: Annotated[list[str], typer.Option("--role", "-r", help="read, send, consume or operate; repeatable.")],
    expires: Expires = None,
) -> None:
    """Create a token and show it once. Once a token exists, the server requires one from everybody."""
    session = context.obj
    token_, text = _tokens(session).create(name, role, expires=expires)
    session.admin.note("create token", detail=f"{name}: {', '.join(sorted(token_.roles))}")
    if session.json:
        return session.emit({**token_.as_dict(), "token": text})
    session.note(f"token {name} may {', '.join(sorted(token_.roles))}; it is shown only once:")
    session.out.print(text, markup=False, soft_wrap=True)
    return None


def ls(context: Context) -> None:
    """List the tokens, without their secrets."""
    session = context.obj
    tokens = _tokens(session).list()
    if session.json:
        return session.emit({"tokens": [each.as_dict() for each in tokens]})
    if not tokens:
        session.nothing("no tokens: the server accepts requests from this machine only, without a token")
    table = render.table("name", "roles", "id", "created", "expires")
    for each in tokens:
        expiry = "never" if each.expires_at is None else f"{each.expires_at:%Y-%m-%d %H:%M}"
        table.add_row(each.name, ", ".join(sorted(each.roles)), each.id, f"{each.created_at:%Y-%m-%d %H:%M}", expiry)
    session.out.print(table)
    return None


def rotate(
    context: Context,
    name: Annotated[str, typer.Argument(help="The token's name or id.")],
    overlap: Annotated[
        float, typer.Option(parser=parse_duration, metavar="TIME", help="How long the old secret stays valid.")
    ] = 3600.0,
    expires: Expires = None,
) -> None:
    """Give a token a new secret and show it once. The old secret, and browsers signed in with it, end after a while."""
    session = context.obj
    token_, text = _tokens(session).rotate(name, overlap=overlap, expires=expires)
    session.admin.note("rotate token", detail=token_.name)
    if session.json:
        return session.emit({**token_.as_dict(), "token": text})
    session.note(
        f"token {token_.name} has a new secret, shown only once; the old secret stays valid for {overlap:g} s:"
    )
    session.out.print(text, markup=False, soft_wrap=True)
    return None


def revoke(context: Context, name: Annotated[str, typer.Argument(help="The token's name or id.")]) -> None:
    """Revoke a token, and sign out every browser that uses it."""
    session = context.obj
    gone = _tokens(session).revoke(name)
    session.admin.note("revoke token", detail=gone.name)
    if session.json:
        return session.emit({"revoked": gone.as_dict()})
    session.note(f"token {gone.name} is revoked")
    return None


def _password(given: str | None) -> str | None:
    """Reads the password from standard input, because every user of the machine can read command lines."""
    if given is None:
        return None
    if given != "-":
        raise WrongUsage("give the password on standard input, with --password -")
    text = sys.stdin.readline().rstrip("\r\n")
    if not text:
        raise WrongUsage("standard input has no password")
    return text


def acl(
    context: Context,
    role: Annotated[list[RedisRole], typer.Option("--role", "-r", help="What the user may do; repeatable.")],
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="The user's name. Default: restante- and the roles.")
    ] = None,
    queue: Annotated[
        list[str] | None, typer.Option(metavar="QUEUE", help="Only this queue; repeatable. Default: all queues.")
    ] = None,
    password: Annotated[
        str | None, typer.Option(metavar="-", help="Read the password from standard input and print its hash.")
    ] = None,
    add: Annotated[
        bool, typer.Option("--add", help="Add to the user's present rights, as before an upgrade of Restante.")
    ] = False,
) -> None:
    """Print the command that creates a Redis user with the least rights for a role. Redis 7, Valkey. Asks no server."""
    session = context.obj
    roles = list(dict.fromkeys(role))
    queues = [valid_name(each) for each in queue or ()]
    name = valid_name(user if user is not None else f"restante-{'-'.join(roles)}", "user")
    if add and (user is None or password is not None):
        raise WrongUsage("--add needs --user, and does not change the password: leave out --password")
    line = add_rights(name, roles, queues) if add else set_user(name, roles, queues, _password(password))
    if session.json:
        document = {"user": name, "roles": roles, "queues": queues, "rules": rules(roles, queues), "command": line}
        return session.emit(document)
    if password is None and not add:
        session.note("replace the placeholder by the SHA-256 of the password, or give the password with --password -")
    typer.echo(line)
    return None

"""Broker URLs: which broker a URL names, and the URL in the forms of the core and of Celery."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from restante.core.embedded import DEFAULT_DIRECTORY, EMBEDDED, tell_private_server
from restante.core.errors import InvalidInput

AMQP = ("amqp", "amqps", "pyamqp")


def choose_broker_url(url: str | None, broker_url: str | None = None) -> str:
    """The broker's URL: `url`, `broker_url`, RESTANTE_BROKER, RESTANTE_URL, or an embedded server, in this order."""
    for given in (url, broker_url):
        if given is not None and not isinstance(given, str):
            raise InvalidInput(
                f"the broker is one URL, such as restante://localhost or amqp://localhost, not {given!r}"
            )
    if url and broker_url and celery_url(url) != celery_url(broker_url):
        raise InvalidInput(
            f"broker and broker_url are the same option, not {shown(url)} and {shown(broker_url)}: give one"
        )
    chosen = url or broker_url or os.environ.get("RESTANTE_BROKER") or os.environ.get("RESTANTE_URL")
    if not chosen:
        tell_private_server(Path(DEFAULT_DIRECTORY).absolute())
    return chosen if chosen and chosen != EMBEDDED else "restante+embedded://"


def is_rabbitmq(url: str) -> bool:
    """Whether a URL names RabbitMQ (True) or Redis (False); InvalidInput where it names neither."""
    scheme = urlsplit(url).scheme
    if scheme in AMQP:
        return True
    if scheme.partition("+")[0] in ("restante", "restantes", "redis", "rediss", "unix", "embedded"):
        return False
    raise InvalidInput(
        f"the broker URL scheme {scheme!r} is not known: use restante://, restantes://, restante+socket:///path, "
        "restante+sentinel://, restante+cluster://, restante+embedded:// or amqp://, amqps://"
    )


def core_url(url: str) -> str:
    """A Redis broker's URL in the core's form; `embedded://folder` for an embedded server."""
    parts = urlsplit(url)
    first, _, rest = parts.scheme.partition("+")
    tls = first in ("restantes", "rediss")
    if rest == "embedded" or first == "embedded":
        return f"embedded://{parts.netloc}{parts.path}"
    if rest == "socket" or first == "unix":
        query = parts.query.replace("virtual_host=", "db=")
        return f"unix://{parts.netloc}{parts.path}{f'?{query}' if query else ''}"
    scheme = "rediss" if tls else "redis"
    return urlunsplit((f"{scheme}+{rest}" if rest else scheme, parts.netloc, parts.path, parts.query, ""))


def celery_url(url: str) -> str:
    """A broker's URL in Celery's form."""
    parts = urlsplit(url)
    first, _, rest = parts.scheme.partition("+")
    if first in AMQP or first in ("restante", "restantes"):
        return url
    if first == "embedded":
        return f"restante+embedded://{parts.netloc}{parts.path}"
    if first == "unix":
        query = parts.query.replace("db=", "virtual_host=")
        return f"restante+socket://{parts.netloc}{parts.path}{f'?{query}' if query else ''}"
    scheme = "restantes" if first == "rediss" else "restante"
    return urlunsplit((f"{scheme}+{rest}" if rest else scheme, parts.netloc, parts.path, parts.query, ""))


def shown(url: str) -> str:
    """The URL without login, query and fragment, for texts."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))

"""PyRSMQ's class `RedisSMQ`, built on `restante.rsmq.Rsmq`; on failure see `exceptions`."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

from restante.compat.pyrsmq.cmd import (
    ChangeMessageVisibilityCommand,
    Command,
    CreateQueueCommand,
    DeleteMessageCommand,
    DeleteQueueCommand,
    GetQueueAttributesCommand,
    ListQueuesCommand,
    PopMessageCommand,
    ReceiveMessageCommand,
    SendMessageCommand,
    SetQueueAttributesCommand,
)
from restante.rsmq.client import Rsmq
from restante.rsmq.errors import BadParameter

__all__ = ["RedisSMQ"]


def _url(client: Any, host: str, port: str | int, options: dict[str, Any]) -> str:
    """The URL of the server that a redis-py client, or PyRSMQ's arguments, name."""
    settings = (
        {"host": host, "port": port, **options} if client is None else dict(client.connection_pool.connection_kwargs)
    )
    if client is None and isinstance(url := settings.get("url"), str):
        return url
    login = ""
    if settings.get("password") is not None:
        login = f"{quote(str(settings.get('username') or ''), '')}:{quote(str(settings['password']), '')}@"
    database = int(settings.get("db") or 0)
    if path := settings.get("path") or settings.get("unix_socket_path"):
        return f"unix://{login}{path}?{urlencode({'db': database})}"
    kind = "" if client is None else client.connection_pool.connection_class.__name__
    scheme = "rediss" if settings.get("ssl") or "SSL" in kind else "redis"
    tls = {key: settings[key] for key in ("ssl_cert_reqs", "ssl_ca_certs") if scheme == "rediss" and settings.get(key)}
    query = f"?{urlencode(tls)}" if tls else ""
    return f"{scheme}://{login}{settings.get('host') or 'localhost'}:{settings.get('port') or 6379}/{database}{query}"


class RedisSMQ:
    """PyRSMQ's class.

    From `client`, a redis-py client, it takes the address and login, and opens its own connections. Keywords other
    than `ns`, `realtime` and `exceptions` become defaults of every command that takes them, such as `qname`.
    """

    def __init__(
        self,
        client: Any = None,
        host: str = "127.0.0.1",
        port: str | int = 6379,
        options: dict[str, Any] | None = None,
        *,
        ns: str = "rsmq",
        realtime: bool = False,
        exceptions: bool = True,
        **defaults: Any,
    ) -> None:
        self.options: dict[str, Any] = {"ns": ns, "realtime": realtime, "exceptions": exceptions}
        self._address: tuple[Any, str, str | int, dict[str, Any]] = (client, host, port, options or {})
        self._defaults = {name: value for name, value in defaults.items() if value is not None}
        known = {name for kind in Command.__subclasses__() for name in kind.takes} | {"quiet"}
        if unknown := sorted(set(self._defaults) - known):
            raise BadParameter(f"RedisSMQ has no parameter {', '.join(unknown)}")
        self._rsmq: Rsmq | None = None

    @property
    def rsmq(self) -> Rsmq:
        """The underlying client, connected on first use."""
        if self._rsmq is None:
            self._rsmq = Rsmq(_url(*self._address), namespace=self.options["ns"], realtime=self.options["realtime"])
        return self._rsmq

    def exceptions(self, enabled: bool = True) -> RedisSMQ:
        """Sets whether failed commands raise or return False."""
        self.options["exceptions"] = enabled is True
        return self

    def setClient(self, client: Any) -> RedisSMQ:  # noqa: N802 (PyRSMQ's name)
        """Switches to the server of a redis-py client."""
        self.quit()
        self._address = (client, *self._address[1:])
        return self

    def _command(self, kind: type[Command], given: dict[str, Any]) -> Any:
        defaults = {name: value for name, value in self._defaults.items() if name in (*kind.takes, "quiet")}
        return kind(self, **defaults | given)

    def createQueue(self, **given: Any) -> CreateQueueCommand:  # noqa: N802 (PyRSMQ's names, here and below)
        return self._command(CreateQueueCommand, given)  # type: ignore[no-any-return]

    def deleteQueue(self, **given: Any) -> DeleteQueueCommand:  # noqa: N802
        return self._command(DeleteQueueCommand, given)  # type: ignore[no-any-return]

    def listQueues(self, **given: Any) -> ListQueuesCommand:  # noqa: N802
        return self._command(ListQueuesCommand, given)  # type: ignore[no-any-return]

    def getQueueAttributes(self, **given: Any) -> GetQueueAttributesCommand:  # noqa: N802
        return self._command(GetQueueAttributesCommand, given)  # type: ignore[no-any-return]

    def setQueueAttributes(self, **given: Any) -> SetQueueAttributesCommand:  # noqa: N802
        return self._command(SetQueueAttributesCommand, given)  # type: ignore[no-any-return]

    def sendMessage(self, **given: Any) -> SendMessageCommand:  # noqa: N802
        return self._command(SendMessageCommand, given)  # type: ignore[no-any-return]

    def receiveMessage(self, **given: Any) -> ReceiveMessageCommand:  # noqa: N802
        return self._command(ReceiveMessageCommand, given)  # type: ignore[no-any-return]

    def popMessage(self, **given: Any) -> PopMessageCommand:  # noqa: N802
        return self._command(PopMessageCommand, given)  # type: ignore[no-any-return]

    def deleteMessage(self, **given: Any) -> DeleteMessageCommand:  # noqa: N802
        return self._command(DeleteMessageCommand, given)  # type: ignore[no-any-return]

    def changeMessageVisibility(self, **given: Any) -> ChangeMessageVisibilityCommand:  # noqa: N802
        return self._command(ChangeMessageVisibilityCommand, given)  # type: ignore[no-any-return]

    def quit(self) -> None:
        """Closes the connections; a later call opens them again."""
        if self._rsmq is not None:
            self._rsmq.close()
            self._rsmq = None

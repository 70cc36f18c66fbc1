"""What every route is made with: who may call it, how its body is read, and what its failures look like."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Request
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from restante.core.keywords import check_keywords
from restante.core.stored import decode_json
from restante.server.access import Caller, Role
from restante.server.requests import NAME
from restante.server.responses import Problem
from restante.server.state import ServerState

Handler = TypeVar("Handler", bound=Callable[..., Any])

#: Characters of an unknown query parameter that are compared and quoted; a longer name is no misspelling.
MOST_COMPARED = 100


class NameConvertor(Convertor[str]):
    """A queue's name or a message's id: a slash in it travels as %2F."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace("%2F", "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", "%2F")


register_url_convertor("name", NameConvertor())

QueueName = Annotated[
    str, Path(pattern=NAME, description="A queue's name; a slash is written %2F.", examples=["orders"])
]
MessageName = Annotated[str, Path(pattern=NAME, description="A message's id.", examples=["01HZY5Q3M8A7C2E4"])]

#: What a status of failure means; FastAPI shows them with every route.
_MEANINGS: dict[int, str] = {
    400: "The request is not one.",
    401: "A token is needed.",
    403: "The token's roles do not allow it.",
    404: "There is no such queue, message or task.",
    408: "The headers or the body came too slowly.",
    409: "The lease is lost, or somebody holds the message.",
    413: "The body or the payload is too large.",
    414: "The URL is too long.",
    415: "The body is not JSON, or packed.",
    422: "The input is not valid; nothing was stored.",
    429: "The queue is full and nothing was stored; or too many wrong tokens.",
    431: "The headers are too large or too many.",
    503: "Redis is away, or the server has too much to do.",
}
_PROBLEM: dict[str, Any] = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
#: What a failure looks like, by status. The model stands once, which puts its schema into the description; the others
#: refer to it: FastAPI makes a validator of every model of every route, which took most of a server's start.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, **({"model": Problem} if status == 400 else {"content": _PROBLEM})}
    for status, meaning in _MEANINGS.items()
}


class _Request(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = decode_json(body)
        return self._json


def _query_parameters(of: Dependant) -> Iterator[str]:
    yield from (one.alias for one in of.query_params)
    for other in of.dependencies:
        yield from _query_parameters(other)


class Route(APIRoute):
    """Reads bodies with the fast decoder, exactly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handler


class ApiRoute(Route):
    """Refuses unknown query parameters and names the closest known one."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        known = set(_query_parameters(self.dependant))

        async def handler(request: Request) -> Response:
            if request.scope["query_string"]:
                given = (name[:MOST_COMPARED] for name in request.query_params)
                check_keywords(given, known, f"{request.method} {self.path}")
            return await handle(request)

        return handler


def router(tag: str, kind: type[Route] = ApiRoute) -> APIRouter:
    """Routes of one kind."""
    return APIRouter(route_class=kind, tags=[tag], responses=PROBLEMS)


def server_state(request: Request) -> ServerState:
    """The state of the application that serves this request."""
    found: ServerState = request.app.state.server
    return found


class Needing:
    """Finds the caller, who must have the role; the documentation asks it which."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Caller:
        return await server_state(request).need(request, self.role)


def needing(role: Role) -> Any:
    """The caller, who must have the role."""
    return Depends(Needing(role))


def role_of(route: APIRoute) -> Role | None:
    """The role that a route asks for; None where any token will do, or none is needed."""
    return next((one.call.role for one in route.dependant.dependencies if isinstance(one.call, Needing)), None)


StateDep = Annotated[ServerState, Depends(server_state)]
Reader = Annotated[Caller, needing(Role.READ)]
Sender = Annotated[Caller, needing(Role.SEND)]
Taker = Annotated[Caller, needing(Role.CONSUME)]
Operator = Annotated[Caller, needing(Role.OPERATE)]


def answering(
    method: Callable[..., Any], path: str, answer: Any, *, status_code: int = 200, **options: Any
) -> Callable[[Handler], Handler]:
    """A route that answers JSON of this shape; the model is for the documentation, what is sent is made by hand."""
    made: Callable[[Handler], Handler] = method(
        path, response_model=None, status_code=status_code, responses={status_code: {"model": answer}}, **options
    )
    return made

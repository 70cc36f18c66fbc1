"""The parts that every route is built from: roles, body decoding, query checks and the model of failures."""

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

#: Characters of an unknown query parameter that are compared and quoted. A longer name is no misspelling.
MOST_COMPARED = 100


class NameConvertor(Convertor[str]):
    """Path segment that holds a queue name or a message ID. A slash in it is encoded as %2F."""

    regex = "[^/]+"

    def convert(self, value: str) -> str:
        return value.replace("%2F", "/")

    def to_string(self, value: str) -> str:
        return value.replace("/", "%2F")


register_url_convertor("name", NameConvertor())

QueueName = Annotated[str, Path(pattern=NAME, description="Queue name. Encode a slash as %2F.", examples=["orders"])]
MessageName = Annotated[str, Path(pattern=NAME, description="Message ID.", examples=["01HZY5Q3M8A7C2E4"])]

#: The meaning of each failure status. FastAPI adds them to every route.
_MEANINGS: dict[int, str] = {
    400: "The request is malformed.",
    401: "A token is required.",
    403: "The token lacks the required role.",
    404: "The queue, message or task does not exist.",
    408: "The headers or the body arrived too slowly.",
    409: "The lease is lost, or a consumer holds the message.",
    413: "The body or the payload is too large.",
    414: "The URL is too long.",
    415: "The body is not JSON, or is compressed.",
    422: "The input is invalid; nothing was stored.",
    429: "The queue is full and nothing was stored, or too many wrong tokens were tried.",
    431: "The headers are too large or too many.",
    503: "Redis is unavailable, or the server is overloaded.",
}
_PROBLEM: dict[str, Any] = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
#: The responses of failures, by status. Only one names the model, which adds its schema to the description; the others
#: refer to that schema. FastAPI builds a validator per model and route, which took most of a server's start.
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
    yield from (parameter.alias for parameter in of.query_params)
    for other in of.dependencies:
        yield from _query_parameters(other)


class Route(APIRoute):
    """Decodes JSON bodies with the core's decoder, which keeps numbers of any size exact."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handler


class ApiRoute(Route):
    """Rejects unknown query parameters and suggests the closest known name."""

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
    """A router whose routes share a tag and the responses of failures."""
    return APIRouter(route_class=kind, tags=[tag], responses=PROBLEMS)


def server_state(request: Request) -> ServerState:
    """The state of the application that serves this request."""
    state: ServerState = request.app.state.server
    return state


class RequiredRole:
    """Dependency that returns the caller if it has the role. The documentation reads `role`."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Caller:
        return await server_state(request).need(request, self.role)


def require_role(role: Role) -> Any:
    """The dependency of a route that requires the role."""
    return Depends(RequiredRole(role))


def role_of(route: APIRoute) -> Role | None:
    """The role that a route requires; None if any token is accepted, or none is needed."""
    return next(
        (
            dependency.call.role
            for dependency in route.dependant.dependencies
            if isinstance(dependency.call, RequiredRole)
        ),
        None,
    )


StateDep = Annotated[ServerState, Depends(server_state)]
Reader = Annotated[Caller, require_role(Role.READ)]
Sender = Annotated[Caller, require_role(Role.SEND)]
Taker = Annotated[Caller, require_role(Role.CONSUME)]
Operator = Annotated[Caller, require_role(Role.OPERATE)]


def json_route(
    method: Callable[..., Any], path: str, answer: Any, *, status_code: int = 200, **options: Any
) -> Callable[[Handler], Handler]:
    """A route that returns JSON of this model. The model only documents: validating each response would be slow."""
    decorator: Callable[[Handler], Handler] = method(
        path, response_model=None, status_code=status_code, responses={status_code: {"model": answer}}, **options
    )
    return decorator

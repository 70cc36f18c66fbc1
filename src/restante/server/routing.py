"""What every route is made with: who may call it, how its body is read, and what its failures look like."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Request
from fastapi.routing import APIRoute
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import Response

from restante.core.stored import decode_json
from restante.server.access import Caller, Role
from restante.server.answers import Problem
from restante.server.office import Office
from restante.server.shapes import NAME

Handler = TypeVar("Handler", bound=Callable[..., Any])


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

#: What a failure looks like, by status; FastAPI shows them with every route.
PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The request is not one."},
    401: {"model": Problem, "description": "A token is needed."},
    403: {"model": Problem, "description": "The token's roles do not allow it."},
    404: {"model": Problem, "description": "There is no such queue, message or task."},
    408: {"model": Problem, "description": "The headers or the body came too slowly."},
    409: {"model": Problem, "description": "The lease is lost, or somebody holds the message."},
    413: {"model": Problem, "description": "The body or the payload is too large."},
    414: {"model": Problem, "description": "The URL is too long."},
    415: {"model": Problem, "description": "The body is not JSON, or packed."},
    422: {"model": Problem, "description": "The input is not valid; nothing was stored."},
    429: {"model": Problem, "description": "The queue is full; nothing was stored."},
    431: {"model": Problem, "description": "The headers are too large or too many."},
    503: {"model": Problem, "description": "Redis is away, or the server has too much to do."},
}


class _Request(Request):
    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            body = await self.body()
            self._json = decode_json(body)
        return self._json


class Route(APIRoute):
    """Reads bodies with the fast decoder, exactly."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            return await handle(_Request(request.scope, request.receive))

        return handler


def router(tag: str) -> APIRouter:
    """Routes of one kind."""
    return APIRouter(route_class=Route, tags=[tag], responses=PROBLEMS)


def office(request: Request) -> Office:
    """The office of the application."""
    found: Office = request.app.state.office
    return found


def needing(role: Role) -> Any:
    """The caller, who must have the role."""

    async def check(request: Request) -> Caller:
        return await office(request).need(request, role)

    return Depends(check)


Here = Annotated[Office, Depends(office)]
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

"""Puts the application together: routes, failures, the session of a browser, and the dashboard's files."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.staticfiles import StaticFiles

from restante.bus.registry import HandlerInfo, registered_handlers
from restante.core import errors
from restante.core.errors import RestanteError
from restante.rsmq import viewing
from restante.server import answers, looking, operating, rsmq, shapes, topics, traffic
from restante.server.access import COOKIE, SESSION_SECONDS, Caller
from restante.server.guard import BodyRefused, Guard
from restante.server.office import Json, Office, Refused, ServerSettings
from restante.server.routing import Here, Reader, answering, router

log = logging.getLogger("restante")

#: The first class that fits decides.
STATUS: tuple[tuple[type[RestanteError], int], ...] = (
    (errors.PayloadTooLarge, 413),
    (errors.InvalidInput, 422),
    (errors.NotFound, 404),
    (errors.LeaseLost, 409),
    (errors.MessageLeased, 409),
    (errors.InUse, 409),
    (errors.QueueFull, 429),
    (errors.Unavailable, 503),
    (errors.Unconfirmed, 503),
    (errors.UnsafeServer, 503),
    (RestanteError, 500),
)
#: Pages of the dashboard that are always there.
PAGES = (
    ("overview", "Overview"), ("dead", "Dead letters"), ("consumers", "Consumers"), ("journal", "Journal"),
    ("anomalies", "Anomalies"), ("audit", "Audit"), ("insights", "Insights"),
)  # fmt: skip
#: Paths that the dashboard itself routes.
_DASHBOARD = (
    "/", "/queues/{rest:path}", "/dead", "/consumers", "/journal", "/anomalies", "/audit", "/insights", "/topics",
    "/rsmq", "/rsmq/{rest:path}",
)  # fmt: skip
#: Operations that need no token.
UNGUARDED = ("healthz", "readyz", "sign_in")
DESCRIPTION = """
Messages in and out for programs in any language, and everything an operator does.

Instants are integer milliseconds of the Redis server's clock, durations are seconds. A failure is
`{"error", "message", "hint"}`. Show a token as `Authorization: Bearer rst_…`; without any token configured the
server answers to this machine alone.
"""


def create_app(url: str, settings: ServerSettings | None = None) -> Guard:
    """The ASGI application on the Redis server at `url`; its `office` is what the routes share."""
    office = Office(url, settings)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await office.open()
        yield
        await office.close()

    app = FastAPI(
        title="Restante", version=office.version, description=DESCRIPTION, lifespan=life, docs_url=None, redoc_url=None,
        openapi_url=None, redirect_slashes=False, routes=_shared_routes(),
    )  # fmt: skip
    app.state.office = office
    _add_failures(app)
    _describe(app)
    _add_pages(app, office)
    made = Guard(app, max_body=office.settings.max_body, body_seconds=office.settings.body_seconds)
    made.office = office
    return made


def _routers() -> list[tuple[str, APIRouter]]:
    """The parts of the API, each with where it begins."""
    parts = (_session, traffic.api, looking.api, operating.api, topics.api, rsmq.api)
    return [*(("/api", part) for part in parts), ("", looking.plain)]


@cache
def _shared_routes() -> list[BaseRoute]:
    """The routes of every application of this process: their validators take longer to build than all the rest, and
    find the application they serve by the request."""
    whole = APIRouter(generate_unique_id_function=_operation_id)
    for prefix, part in _routers():
        whole.include_router(part, prefix=prefix)
    return whole.routes


def api_routes() -> list[tuple[str, APIRoute]]:
    """Every route that the API describes, with its path."""
    found = [(prefix, route) for prefix, part in _routers() for route in part.routes if isinstance(route, APIRoute)]
    return [
        (f"{prefix}{route.path}".replace(":name}", "}"), route) for prefix, route in found if route.include_in_schema
    ]


def _operation_id(route: Any) -> str:
    """What generated clients call it."""
    return str(route.name).rstrip("_")


# -- failures --------------------------------------------------------------------------------------------------------


def _hint(error: RestanteError) -> str:
    """The remedy, as the error's own documentation begins."""
    return " ".join((type(error).__doc__ or "").split("\n\n")[0].split())


def _add_failures(app: FastAPI) -> None:
    @app.exception_handler(RestanteError)
    async def refused(request: Request, error: RestanteError) -> Response:
        status = next(status for kind, status in STATUS if isinstance(error, kind))
        body: dict[str, Any] = {"error": type(error).__name__, "message": str(error), "hint": _hint(error)}
        if isinstance(error, errors.LeaseLost | errors.Unconfirmed):
            body["ids"] = list(error.ids)
        if status >= 500:
            log.warning("failed method=%s path=%s error=%s", request.method, request.url.path, error)
        return Json(body, status, {"Retry-After": "1"} if status in (429, 503) else None)

    @app.exception_handler(Refused)
    async def kept_out(request: Request, error: Refused) -> Response:
        headers = {"WWW-Authenticate": "Bearer"} if error.status == 401 else {}
        if error.status in (429, 503):
            headers["Retry-After"] = str(error.retry_after)
        return Json(error.body, error.status, headers)

    @app.exception_handler(BodyRefused)
    async def given_up(request: Request, error: BodyRefused) -> Response:
        return Response(error.body, error.status, {"Connection": "close"}, "application/json")

    @app.exception_handler(RequestValidationError)
    async def not_valid(request: Request, error: RequestValidationError) -> Response:
        said = []
        for one in error.errors()[:5]:
            place = ".".join(str(part) for part in one["loc"] if part not in ("body", "one", "many"))
            said.append(f"{place}: {one['msg']}" if place else str(one["msg"]))
        hint = "nothing was stored; the API is described by /api/openapi.json"
        return Json({"error": "InvalidInput", "message": "; ".join(said)[:1000], "hint": hint}, 422)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        names = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed"}
        body = {
            "error": names.get(error.status_code, "Error"), "message": f"{request.method} {request.url.path}: "
            f"{error.detail}"[:300], "hint": "the API is described by /api/openapi.json",
        }  # fmt: skip
        headers = dict(error.headers or {})
        if error.status_code == 405:
            headers["Allow"] = ", ".join(sorted(_methods(app, request)))
        return Json(body, error.status_code, headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        log.exception("failed method=%s path=%s error=%s", request.method, request.url.path, type(error).__name__)
        hint = "the server's log has the details"
        return Json({"error": "Unexpected", "message": "something went wrong in the server", "hint": hint}, 500)


def _methods(app: FastAPI, request: Request) -> set[str]:
    """Every method that some route of this path has."""
    found: set[str] = set()
    for route in app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            found |= getattr(route, "methods", None) or set()
    return found


# -- the browser's session -------------------------------------------------------------------------------------------

_session = router("session")


async def _told(here: Office, caller: Caller) -> dict[str, Any]:
    pages = [{"id": id, "title": title} for id, title in PAGES]
    services: list[HandlerInfo] = await here.call(registered_handlers, here.post)
    if services or here.rabbitmq.url is not None:
        pages.insert(2, {"id": "topics", "title": "Topics"})
    if await here.call(viewing.any_queue, here.post):
        pages.append({"id": "rsmq", "title": "RSMQ"})
    return {
        "user": caller.name, "roles": sorted(caller.roles), "open": caller.open, "version": here.version,
        "server": here.shown, "now": await here.now_ms(), "pages": pages,
    }  # fmt: skip


@answering(_session.get, "/session", answers.Session, summary="Who you are, and what there is to see")
async def session(here: Here, request: Request) -> Json:
    """Any token will do."""
    return Json(await _told(here, await here.caller(request)))


@answering(_session.post, "/session", answers.Session, summary="Sign a browser in")
async def sign_in(here: Here, request: Request, body: shapes.SignIn) -> Json:
    """Sets a cookie that scripts cannot read. After ten wrong tokens an address waits up to a minute."""
    address = request.client.host if request.client is not None else ""
    if (wait := here.sign_in_limit.wait(address)) > 0:
        raise Refused(429, "TooManyTries", "too many wrong tokens", "wait and try again", retry_seconds=wait)
    found = await here.call(here.tokens.sign_in, body.token)
    if found is None:
        here.sign_in_limit.fail(address)
        log.warning("sign-in refused address=%s", address)
        raise Refused(401, "Unauthorized", "this token is not known", "make one with `restante token create`")
    caller, cookie = found
    await here.call(here.admin(caller).note, "sign in")
    answer = Json(await _told(here, caller))
    answer.set_cookie(
        COOKIE, cookie, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return answer


@answering(_session.delete, "/session", answers.Health, summary="Sign out")
async def sign_out(here: Here, request: Request) -> Json:
    """Forgets the cookie."""
    await here.caller(request)
    cookie = request.cookies.get(COOKIE, "")
    if cookie:
        await here.call(here.tokens.sign_out, cookie)
    answer = Json({"status": "ok"})
    answer.delete_cookie(COOKIE)
    return answer


@_session.get("/openapi.json", include_in_schema=False)
async def described(here: Here, request: Request) -> Json:
    await here.caller(request)
    return Json(request.app.openapi())


def _describe(app: FastAPI) -> None:
    """Adds to the description what FastAPI cannot know: how to show a token, and our own form of failures."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            made = make()
            made["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "Made by `restante token create`."}
            }
            paths = {path.replace(":name}", "}"): item for path, item in made["paths"].items()}
            for path, item in paths.items():
                for operation in item.values():
                    unguarded = operation["operationId"] in UNGUARDED
                    operation["security"] = [] if unguarded else [{"token": []}]
                    for status in ("401", "403", "422") if path in ("/healthz", "/readyz") else ():
                        operation["responses"].pop(status, None)
            made["paths"] = paths
            app.openapi_schema = made
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's own way to change it


# -- the dashboard ---------------------------------------------------------------------------------------------------

MISSING = """The dashboard is not built into this installation.

In a checkout: make dashboard (needs Node), or install a wheel, which brings it.
The API works without it: see /api/openapi.json.
"""


def static() -> Path:
    """Where the dashboard's files are."""
    return Path(str(resources.files("restante.server"))) / "static"


def _add_pages(app: FastAPI, office: Office) -> None:
    folder = static()

    async def page(request: Request) -> Response:
        index = folder / "index.html"
        if not index.is_file():
            return PlainTextResponse(MISSING, 503)
        return FileResponse(index, media_type="text/html")

    for path in _DASHBOARD:
        app.add_api_route(path, page, include_in_schema=False, response_model=None)

    @app.get("/insights/report", include_in_schema=False, response_model=None)
    async def report(here: Here, caller: Reader) -> Response:
        made = office.settings.lake / "report.html" if office.settings.lake is not None else None
        if made is None or not made.is_file():
            raise errors.NotFound("there is no report: see GET /api/insights")
        return FileResponse(made, media_type="text/html")

    if (folder / "assets").is_dir():
        app.mount("/assets", StaticFiles(directory=folder / "assets"))
    for name in ("favicon.svg", "favicon.ico"):
        if (folder / name).is_file():
            app.add_api_route(f"/{name}", _file(folder / name), include_in_schema=False, response_model=None)


def _file(path: Path) -> Any:
    async def send() -> Response:
        return FileResponse(path)

    return send

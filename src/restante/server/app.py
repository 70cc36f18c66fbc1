"""Builds the ASGI application: routes, error handlers, browser sessions, and the dashboard's files."""

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
from pydantic.json_schema import models_json_schema
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match
from starlette.staticfiles import StaticFiles

from restante.bus.registry import HandlerInfo, registered_handlers
from restante.core import errors
from restante.core.errors import RestanteError
from restante.rsmq import inspector
from restante.server import requests, responses
from restante.server.access import COOKIE, SESSION_SECONDS, Caller
from restante.server.guard import BodyRefused, Guard
from restante.server.routes import admin, batches, messages, read, rsmq, schedules, topics
from restante.server.routing import Reader, StateDep, json_route, router
from restante.server.state import Json, Refused, ServerSettings, ServerState

log = logging.getLogger("restante")

#: Error class → status; the first match counts.
STATUS: tuple[tuple[type[RestanteError], int], ...] = (
    (errors.PayloadTooLarge, 413),
    (errors.InvalidInput, 422),
    (errors.NotFound, 404),
    (errors.LeaseLost, 409),
    (errors.MessageLeased, 409),
    (errors.BatchEnded, 409),
    (errors.InUse, 409),
    (errors.QueueFull, 429),
    (errors.Unavailable, 503),
    (errors.Unconfirmed, 503),
    (errors.UnsafeServer, 503),
    (RestanteError, 500),
)
#: Pages that the dashboard always shows.
PAGES = (
    ("overview", "Overview"),
    ("dead", "Dead letters"),
    ("batches", "Batches"),
    ("consumers", "Consumers"),
    ("schedules", "Schedules"),
    ("journal", "Journal"),
    ("anomalies", "Anomalies"),
    ("audit", "Audit"),
    ("insights", "Insights"),
)
#: Paths that the dashboard routes in the browser.
_DASHBOARD = (
    "/",
    "/queues/{rest:path}",
    "/dead",
    "/batches",
    "/consumers",
    "/schedules",
    "/journal",
    "/anomalies",
    "/audit",
    "/insights",
    "/topics",
    "/rsmq",
    "/rsmq/{rest:path}",
)
#: Operations that need no token.
UNGUARDED = ("healthz", "readyz", "sign_in")
DESCRIPTION = """
Send and receive messages from any language, and operate queues.

Instants are integer milliseconds of the Redis server's clock, durations are seconds. The body of a failure is
`{"error", "message", "hint"}`. Send the token as `Authorization: Bearer rst_…`. Without any token configured the server
accepts connections from this machine only.
"""


def create_app(url: str, settings: ServerSettings | None = None) -> Guard:
    """Builds the ASGI application for the Redis server at `url`. Its `state` holds what the routes share."""
    state = ServerState(url, settings)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        await state.open()
        yield
        await state.close()

    app = FastAPI(
        title="Restante",
        version=state.version,
        description=DESCRIPTION,
        lifespan=life,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        routes=_shared_routes(),
    )
    app.state.server = state
    _add_failures(app)
    _describe(app)
    _add_pages(app, state)
    guard = Guard(app, max_body=state.settings.max_body, body_seconds=state.settings.body_seconds)
    guard.state = state
    return guard


def _routers() -> list[tuple[str, APIRouter]]:
    """The routers of the API, each with its path prefix."""
    parts = (_session, messages.api, read.api, admin.api, batches.api, schedules.api, topics.api, rsmq.api)
    return [*(("/api", part) for part in parts), ("", read.plain)]


@cache
def _shared_routes() -> list[BaseRoute]:
    """The routes, built once per process and shared by its applications.

    Building their validators is the slowest part of a start. Routes find their application through the request.
    """
    whole = APIRouter(generate_unique_id_function=_operation_id)
    for prefix, part in _routers():
        whole.include_router(part, prefix=prefix)
    return whole.routes


def api_routes() -> list[tuple[str, APIRoute]]:
    """Every route in the API's description, with its path."""
    routes = [(prefix, route) for prefix, part in _routers() for route in part.routes if isinstance(route, APIRoute)]
    return [
        (f"{prefix}{route.path}".replace(":name}", "}"), route) for prefix, route in routes if route.include_in_schema
    ]


def _operation_id(route: Any) -> str:
    """The operation ID, from which generated clients name their methods."""
    return str(route.name).rstrip("_")


# -- failures --------------------------------------------------------------------------------------------------------


def _hint(error: RestanteError) -> str:
    """The remedy: the first paragraph of the error's docstring."""
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
        problems = []
        for detail in error.errors()[:5]:
            place = ".".join(str(part) for part in detail["loc"] if part not in ("body", "one", "many"))
            problems.append(f"{place}: {detail['msg']}" if place else str(detail["msg"]))
        hint = "nothing was stored; the API is described by /api/openapi.json"
        return Json({"error": "InvalidInput", "message": "; ".join(problems)[:1000], "hint": hint}, 422)

    @app.exception_handler(HTTPException)
    async def no_route(request: Request, error: HTTPException) -> Response:
        names = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed"}
        body = {
            "error": names.get(error.status_code, "Error"),
            "message": f"{request.method} {request.url.path}: {error.detail}"[:300],
            "hint": "the API is described by /api/openapi.json",
        }
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
    """The methods that the routes of this path accept."""
    methods: set[str] = set()
    for route in app.routes:
        match, _ = route.matches(request.scope)
        if match is not Match.NONE:
            methods |= getattr(route, "methods", None) or set()
    return methods


# -- browser sessions -------------------------------------------------------------------------------------------

_session = router("session")


async def _session_out(state: ServerState, caller: Caller) -> dict[str, Any]:
    pages = [{"id": id, "title": title} for id, title in PAGES]
    services: list[HandlerInfo] = await state.call(registered_handlers, state.client)
    if services or state.rabbitmq.url is not None:
        pages.insert(2, {"id": "topics", "title": "Topics"})
    if await state.call(inspector.has_queues, state.client):
        pages.append({"id": "rsmq", "title": "RSMQ"})
    return {
        "user": caller.name,
        "roles": sorted(caller.roles),
        "open": caller.open,
        "version": state.version,
        "server": state.shown,
        "now": await state.now_ms(),
        "pages": pages,
    }


@json_route(_session.get, "/session", responses.Session, summary="Show the caller and the pages it can open")
async def session(state: StateDep, request: Request) -> Json:
    """Accepts any valid token."""
    return Json(await _session_out(state, await state.caller(request)))


@json_route(_session.post, "/session", responses.Session, summary="Sign in a browser")
async def sign_in(state: StateDep, request: Request, body: requests.SignIn) -> Json:
    """Sets a cookie that scripts cannot read. After ten wrong tokens an address must wait up to a minute."""
    address = request.client.host if request.client is not None else ""
    if (wait := state.sign_in_limit.wait(address)) > 0:
        raise Refused(
            429,
            "TooManyTries",
            "too many wrong tokens from this address",
            "wait before you try again",
            retry_seconds=wait,
        )
    signed_in = await state.call(state.tokens.sign_in, body.token)
    if signed_in is None:
        state.sign_in_limit.fail(address)
        log.warning("sign-in refused address=%s", address)
        raise Refused(401, "Unauthorized", "this token is not valid", "create one with `restante token create`")
    caller, cookie = signed_in
    await state.call(state.admin(caller).note, "sign in")
    answer = Json(await _session_out(state, caller))
    answer.set_cookie(
        COOKIE, cookie, max_age=SESSION_SECONDS, httponly=True, samesite="strict", secure=request.url.scheme == "https"
    )
    return answer


@json_route(_session.delete, "/session", responses.Health, summary="Sign out")
async def sign_out(state: StateDep, request: Request) -> Json:
    """Ends the session and deletes the cookie."""
    await state.caller(request)
    cookie = request.cookies.get(COOKIE, "")
    if cookie:
        await state.call(state.tokens.sign_out, cookie)
    answer = Json({"status": "ok"})
    answer.delete_cookie(COOKIE)
    return answer


@_session.get("/openapi.json", include_in_schema=False)
async def described(state: StateDep, request: Request) -> Json:
    await state.caller(request)
    return Json(request.app.openapi())


def _describe(app: FastAPI) -> None:
    """Adds what FastAPI does not know: the token scheme, the models of events, and operations that need no token."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            described = make()
            described["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "Created by `restante token create`."}
            }
            described["components"]["schemas"] |= _event_schemas()
            paths = {path.replace(":name}", "}"): item for path, item in described["paths"].items()}
            for path, item in paths.items():
                for operation in item.values():
                    unguarded = operation["operationId"] in UNGUARDED
                    operation["security"] = [] if unguarded else [{"token": []}]
                    for status in ("401", "403", "422") if path in ("/healthz", "/readyz") else ():
                        operation["responses"].pop(status, None)
            described["paths"] = paths
            app.openapi_schema = described
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI documents this as the way to extend it


def _event_schemas() -> dict[str, Any]:
    """The schemas of server-sent events, and of the models in them."""
    models: Any = [(model, "serialization") for model in responses.EVENTS]
    schemas: dict[str, Any] = models_json_schema(models, ref_template="#/components/schemas/{model}")[1]["$defs"]
    return schemas


# -- the dashboard ---------------------------------------------------------------------------------------------------

MISSING = """The dashboard is not built into this installation.

In a checkout run `make dashboard` (needs Node), or install a wheel, which includes it.
The API works without the dashboard: see /api/openapi.json.
"""


def static() -> Path:
    """The directory of the built dashboard."""
    return Path(str(resources.files("restante.server"))) / "static"


def _add_pages(app: FastAPI, state: ServerState) -> None:
    folder = static()

    async def page(request: Request) -> Response:
        index = folder / "index.html"
        if not index.is_file():
            return PlainTextResponse(MISSING, 503)
        return FileResponse(index, media_type="text/html")

    for path in _DASHBOARD:
        app.add_api_route(path, page, include_in_schema=False, response_model=None)

    @app.get("/insights/report", include_in_schema=False, response_model=None)
    async def report(state: StateDep, caller: Reader) -> Response:
        path = state.settings.lake / "report.html" if state.settings.lake is not None else None
        if path is None or not path.is_file():
            raise errors.NotFound("there is no report yet: see GET /api/insights")
        return FileResponse(path, media_type="text/html")

    if (folder / "assets").is_dir():
        app.mount("/assets", StaticFiles(directory=folder / "assets"))
    for name in ("favicon.svg", "favicon.ico"):
        if (folder / name).is_file():
            app.add_api_route(f"/{name}", _file(folder / name), include_in_schema=False, response_model=None)


def _file(path: Path) -> Any:
    async def send() -> Response:
        return FileResponse(path)

    return send

"""Generates what depends on the OpenAPI description: `python docs/http_reference.py`.

These are docs/reference/http.md and dashboard/openapi.json, from which the build of the dashboard generates its types.
The latter is in git, so that the dashboard builds with Node alone. A test compares both with the running application.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from restante.server import create_app

PAGE = Path(__file__).parent / "reference" / "http.md"
MODELS = Path(__file__).parents[1] / "dashboard" / "openapi.json"
#: Tag → heading, in the order of the page.
HEADINGS = {
    "messages": "Messages",
    "looking": "Read",
    "operating": "Admin",
    "schedules": "Schedules",
    "topics": "Topics",
    "rsmq": "RSMQ",
    "session": "Session",
    "health": "Health",
}
HEAD = """# HTTP

Every route of the server, as described by `/api/openapi.json`. `docs/http_reference.py` generates this page. See
[the server and the dashboard](../guide/server.md) for how to use them, and [its limits](../guide/server.md#limits).
Instants are integer milliseconds, durations are seconds. Encode a slash in a queue name or message ID as `%2F`. If the
server has tokens, every route requires one, except those marked "no token".

| Status | Means |
|---|---|
| 200, 201, 202 | success; stored; still running |
| 401, 403 | no valid token; the token lacks the role |
| 404 | the queue, message or task does not exist |
| 408 | the headers or the body arrived too slowly |
| 413, 415 | the body is too large; it is not JSON, or is compressed |
| 414, 431 | the URL is too long; headers or trailers are too large or too many |
| 409 | the lease is lost, a consumer holds the message, or the `Idempotency-Key` was used with another body |
| 422 | invalid input, and nothing was stored: the message names the field, or the closest known query parameter |
| 429 | the queue is full and nothing was stored, or too many wrong tokens were tried |
| 503 | Redis is unavailable, or the server is overloaded: retry |
"""


def _words(values: list[str]) -> str:
    return " \\| ".join(f"`{value}`" for value in values)


def _type(schema: dict[str, Any], known: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (
            " \\| ".join(f"`{value}`" for value in known[name]["enum"])
            if "enum" in known[name]
            else f"[{name}](#{name.lower()})"
        )
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_type(option, known) for option in schema.get("anyOf") or schema["oneOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], known)}"
    if "enum" in schema:
        return _words(schema["enum"])
    if "const" in schema:
        return _words([schema["const"]])
    return str(schema.get("type", "any"))


def _limits(schema: dict[str, Any]) -> str:
    limits = []
    for option in (schema, *schema.get("anyOf", ())):
        if "minimum" in option or "maximum" in option:
            limits.append(f"{option.get('minimum', '')} to {option.get('maximum', '')}")
        if "maxLength" in option or "maxItems" in option:
            limits.append(f"up to {option.get('maxLength', option.get('maxItems'))}")
    return ", ".join(limits)


def _fields(schema: dict[str, Any], known: dict[str, Any]) -> list[str]:
    lines = ["| Field | Type | Limits | Default |", "|---|---|---|---|"]
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        default = "required" if name in required else f"`{field.get('default')}`".replace("None", "null")
        lines.append(f"| `{name}` | {_type(field, known)} | {_limits(field)} | {default} |")
    return lines


def _description() -> dict[str, Any]:
    return create_app("redis://localhost:6379")._app.openapi()  # type: ignore[attr-defined,no-any-return]


def _untitled(schema: Any) -> Any:
    """The schema without its generated titles, which only repeat names."""
    if isinstance(schema, list):
        return [_untitled(item) for item in schema]
    if isinstance(schema, dict):
        return {key: _untitled(value) for key, value in schema.items() if key != "title" or isinstance(value, dict)}
    return schema


def models() -> str:
    """The models of the API as an OpenAPI document without routes."""
    schema = _description()
    document = {
        "openapi": schema["openapi"],
        "info": {"title": schema["info"]["title"], "version": ""},
        "paths": {},
        "components": {"schemas": _untitled(schema["components"]["schemas"])},
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def page() -> str:
    """The text of the page."""
    schema = _description()
    known = schema["components"]["schemas"]
    lines = [HEAD]
    for tag, heading in HEADINGS.items():
        lines += [
            f"## {heading}",
            "",
            "| Route | Description | Body | Response |",
            "|---|---|---|---|",
        ]
        for path, item in schema["paths"].items():
            for method, operation in item.items():
                if operation["tags"] != [tag]:
                    continue
                content = operation.get("requestBody", {}).get("content", {})
                body = "".join(_type(kind["schema"], known) for kind in content.values())
                good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
                kinds = good.get("content", {})
                answer = " or ".join(_type(kind.get("schema", {}), known) for kind in kinds.values())
                asked = [
                    parameter["name"] for parameter in operation.get("parameters", ()) if parameter["in"] == "query"
                ]
                query = f"?{'&'.join(f'{name}=' for name in asked)}" if asked else ""
                does = operation["summary"] + ("." if operation["security"] else "; no token.")
                lines.append(f"| `{method.upper()} {path}{query}` | {does} | {body} | {answer} |")
        lines.append("")
    lines += ["## Fields", ""]
    for name in sorted(known):
        if "properties" in known[name] and name not in ("HTTPValidationError", "ValidationError"):
            about = known[name].get("description", "").strip()
            lines += [f"### {name}", "", *([about, ""] if about else []), *_fields(known[name], known), ""]
    return "\n".join(lines).rstrip() + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    MODELS.write_text(models())

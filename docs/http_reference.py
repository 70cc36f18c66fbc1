"""Writes docs/reference/http.md from the application's own description: `python docs/http_reference.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from restante.server import create_app

PAGE = Path(__file__).parent / "reference" / "http.md"
HEAD = """# HTTP

Every route of the server, as `/api/openapi.json` describes it; this page is written by `docs/http_reference.py`.
How to use them: [the server and the dashboard](../guide/server.md). Instants are integer milliseconds, durations
seconds. A slash in a queue's name or a message's id is written `%2F`. Where the server has tokens, every route needs
one but those marked "no token". All limits: [the server](../guide/server.md#limits).

| Status | Means |
|---|---|
| 200, 201, 202 | done; stored; under way |
| 401, 403 | no token, or one without the role |
| 404 | no such queue, message or task |
| 408 | the headers or the body are too slow |
| 413, 415 | the body is too large, not JSON or packed |
| 414, 431 | the URL is too long; headers or trailers are too large or too many |
| 409 | the lease is lost, somebody holds the message, or the key was used for another body |
| 422 | not valid: the message names the field, or an unknown query parameter and the nearest; nothing was stored |
| 429 | the queue is full, and nothing was stored; or too many wrong tokens were tried |
| 503 | Redis is away, or the server has too much to do: try again |
"""


def _words(values: list[str]) -> str:
    return " \\| ".join(f"`{one}`" for one in values)


def _type(schema: dict[str, Any], known: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return (
            " \\| ".join(f"`{one}`" for one in known[name]["enum"])
            if "enum" in known[name]
            else f"[{name}](#{name.lower()})"
        )
    if "anyOf" in schema or "oneOf" in schema:
        return " or ".join(_type(one, known) for one in schema.get("anyOf") or schema["oneOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'], known)}"
    if "enum" in schema:
        return _words(schema["enum"])
    return str(schema.get("type", "any"))


def _limits(schema: dict[str, Any]) -> str:
    made = []
    for one in (schema, *schema.get("anyOf", ())):
        if "minimum" in one or "maximum" in one:
            made.append(f"{one.get('minimum', '')} to {one.get('maximum', '')}")
        if "maxLength" in one or "maxItems" in one:
            made.append(f"up to {one.get('maxLength', one.get('maxItems'))}")
    return ", ".join(made)


def _fields(schema: dict[str, Any], known: dict[str, Any]) -> list[str]:
    lines = ["| Field | Type | Limits | Default |", "|---|---|---|---|"]
    required = schema.get("required", ())
    for name, one in schema.get("properties", {}).items():
        default = "required" if name in required else f"`{one.get('default')}`".replace("None", "null")
        lines.append(f"| `{name}` | {_type(one, known)} | {_limits(one)} | {default} |")
    return lines


def page() -> str:
    """The whole page."""
    schema = create_app("redis://localhost:6379")._app.openapi()  # type: ignore[attr-defined]
    known = schema["components"]["schemas"]
    lines = [HEAD]
    for tag in ("messages", "looking", "operating", "topics", "rsmq", "session", "health"):
        lines += [
            f"## {'RSMQ' if tag == 'rsmq' else tag.capitalize()}",
            "",
            "| Route | Does | Body | Answer |",
            "|---|---|---|---|",
        ]
        for path, item in schema["paths"].items():
            for method, operation in item.items():
                if operation["tags"] != [tag]:
                    continue
                content = operation.get("requestBody", {}).get("content", {})
                body = "".join(_type(one["schema"], known) for one in content.values())
                good = next(answer for status, answer in operation["responses"].items() if status.startswith("2"))
                kinds = good.get("content", {})
                answer = " or ".join(_type(one.get("schema", {}), known) for one in kinds.values())
                asked = [one["name"] for one in operation.get("parameters", ()) if one["in"] == "query"]
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

"""The reference page at /docs: the OpenAPI document as a page of its own, without anything from outside."""

import json
from html import escape
from typing import Any

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --ink: #1463a5; }
body { font: 15px/1.55 system-ui, sans-serif; max-width: 70rem; margin: 0 auto; padding: 1.5rem; }
h1 { margin-bottom: 0 } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line) }
h2 { text-transform: capitalize }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0 }
summary { cursor: pointer; padding: .45rem .7rem } details[open] > summary { background: var(--soft) }
.inside { padding: .3rem 1rem 1rem } code, pre { font: 13px/1.5 ui-monospace, monospace }
pre { background: var(--soft); padding: .7rem; overflow: auto; border-radius: 4px }
.method { display: inline-block; width: 4.6rem; font-weight: 700; color: var(--ink) }
.about { opacity: .75; margin-left: .6rem } table { border-collapse: collapse; width: 100% }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line) }
td { vertical-align: top }
"""


def page(document: dict[str, Any]) -> str:
    """The page, all of it."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _operation(document, path, method, operation)
            by_tag.setdefault(operation["tags"][0], []).append(shown)
    sections = "".join(f"<h2>{escape(tag)}</h2>{''.join(shown)}" for tag, shown in by_tag.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} API</h1><p>Version {escape(info['version'])}. "
        f'{escape(info["description"])} For programs: <a href="/openapi.json">openapi.json</a>.</p>'
        f"{sections}</body></html>"
    )


def _operation(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    inside = [f"<p>{_text(operation['description'])}</p>"]
    rows = [
        (each["name"], each["in"], _kind(each["schema"]), each.get("description", ""), each["required"])
        for each in operation["parameters"]
    ]
    if rows:
        inside.append(_table("Parameters", rows))
    if "requestBody" in operation:
        inside.append(_schema(document, "Body", next(iter(operation["requestBody"]["content"].values()))))
    if "content" in operation["responses"]["200"]:
        content = operation["responses"]["200"]["content"]
        inside.append(_schema(document, "Answer", next(iter(content.values()))))
    inside.append(f"<h4>Try it</h4><pre>{escape(_curl(path, method, operation))}</pre>")
    return (
        f'<details id="{escape(operation["operationId"])}"><summary>'
        f'<span class="method">{method.upper()}</span>'
        f'<code>{escape(path)}</code><span class="about">{escape(operation["summary"])}</span></summary>'
        f'<div class="inside">{"".join(inside)}</div></details>'
    )


def _text(text: str) -> str:
    """Text with `names` in it."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _table(title: str, rows: list[tuple[str, str, str, str, bool]]) -> str:
    body = "".join(
        f"<tr><td><code>{escape(name)}</code>{'*' if required else ''}</td><td>{escape(where)}</td>"
        f"<td>{escape(kind)}</td><td>{_text(about)}</td></tr>"
        for name, where, kind, about, required in rows
    )
    return f"<h4>{title}</h4><table>{body}</table>"


def _schema(document: dict[str, Any], title: str, content: dict[str, Any]) -> str:
    schema = content.get("schema", {})
    first = schema["anyOf"][0] if "anyOf" in schema else schema
    if "$ref" not in first:
        return ""
    name = first["$ref"].rpartition("/")[2]
    whole = document["components"]["schemas"][name]
    required = whole.get("required", [])
    rows = [
        (field, _default(each), _kind(each), each.get("description", ""), field in required)
        for field, each in whole.get("properties", {}).items()
    ]
    return _table(title, rows)


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default is None else f"{json.dumps(default)} if absent"


def _kind(schema: dict[str, Any]) -> str:
    """A type in a few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    kind = schema.get("type", "any JSON")
    return f"list of {_kind(schema.get('items', {}))}" if kind == "array" else str(kind)


def _curl(path: str, method: str, operation: dict[str, Any]) -> str:
    place = f"http://127.0.0.1:8080{path}"
    if "requestBody" not in operation:
        return f"curl '{place}'" if method == "get" else f"curl -X {method.upper()} '{place}'"
    how = "" if method == "post" else f"-X {method.upper()} "
    body = {"Push": '{"payload": {"n": 1}}', "Ack": '{"lease": "…"}'}.get(operation["operationId"], "{}")
    return f"curl {how}'{place}' -H 'content-type: application/json' -d '{body}'"

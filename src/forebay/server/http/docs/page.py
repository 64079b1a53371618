"""The reference page at /docs: the OpenAPI document as HTML that loads nothing from elsewhere."""

import json
import re
from collections.abc import Iterator
from html import escape
from typing import Any
from urllib.parse import urlencode

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8882; --ink: #0b5394; --quiet: #555 }
@media (prefers-color-scheme: dark) { :root { --ink: #7ab8f5; --quiet: #aaa } }
* { box-sizing: border-box }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem;
  overflow-wrap: anywhere }
h1 { margin: .5rem 0 } h2 { margin: 2.5rem 0 .5rem }
h2::first-letter, nav a::first-letter { text-transform: uppercase }
h4 { margin: 1.2rem 0 .3rem } a { color: var(--ink) } nav a { display: inline-block; margin-right: 1rem }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0 }
summary { cursor: pointer; padding: .5rem .7rem } details[open] > summary { background: var(--soft) }
.inside { padding: .2rem .8rem .8rem } code, pre { font: 14px/1.5 ui-monospace, monospace }
pre { background: var(--soft); padding: .7rem; border-radius: 4px; white-space: pre-wrap }
.method { display: inline-block; min-width: 4.8rem; font-weight: 700; color: var(--ink) }
.quiet { color: var(--quiet) } .field { border-top: 1px solid var(--line); padding: .35rem 0 }
.field > code:first-child { font-weight: 700 } .field p { margin: 0 } summary .quiet { margin-left: .4rem }
"""


_HERE = "http://localhost:8080"
_SCRIPT = f"""
for (const each of document.querySelectorAll("pre"))
  each.textContent = each.textContent.replace("{_HERE}", location.origin)
"""
"""Puts the page's own server into the examples."""


def page(document: dict[str, Any]) -> str:
    """Return the whole page."""
    info = document["info"]
    by_tag: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            shown = _operation(document, path, method, operation)
            by_tag.setdefault(operation["tags"][0], []).append(shown)
    links = "".join(f'<a href="#{_anchor(tag)}">{escape(tag)}</a>' for tag in by_tag)
    sections = "".join(
        f'<h2 id="{_anchor(tag)}">{escape(tag)}</h2>{"".join(shown)}' for tag, shown in by_tag.items()
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(info['title'])} API</h1><p>Version {escape(info['version'])}. "
        f'{escape(info["description"])} For programs: <a href="/openapi.json">openapi.json</a>.</p>'
        "<p>Fields marked * are required. In the examples, put the lease of a pop where LEASE is, the id of "
        "a message where ID is, that of a webhook where WEBHOOK is, and a new directory where DIRECTORY "
        "is.</p>"
        f"<nav>{links}</nav>{sections}<script>{_SCRIPT}</script></body></html>"
    )


def _anchor(tag: str) -> str:
    return escape(tag.replace(" ", "-"))


def _operation(document: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    inside = [f"<p>{_text(operation['description'])}</p>"]
    inside.append(f"<h4>Try it</h4><pre>{escape(curl(path, method, operation))}</pre>")
    if operation["parameters"]:
        fields = [
            _field(document, each["name"], each["schema"] | each, each["required"])
            for each in operation["parameters"]
        ]
        inside.append(f"<h4>In the path and the query</h4>{''.join(fields)}")
    if "requestBody" in operation:
        inside += _contents(document, "Body", operation["requestBody"]["content"])
    inside += _contents(document, "Answer", operation["responses"]["200"]["content"])
    inside.append(f"<h4>Errors</h4>{_errors(operation['responses'])}")
    return (
        f'<details id="{escape(operation["operationId"])}"><summary>'
        f'<span class="method">{method.upper()}</span>'
        f'<code>{escape(path)}</code> <span class="quiet">{escape(operation["summary"])}</span></summary>'
        f'<div class="inside">{"".join(inside)}</div></details>'
    )


def _text(text: str) -> str:
    """Return text as HTML, with `names` as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))


def _contents(document: dict[str, Any], title: str, contents: dict[str, Any]) -> Iterator[str]:
    """Yield the body or the reply in each of its content types."""
    for kind, content in contents.items():
        said = title if kind == "application/json" else f"{title} as {kind.partition(';')[0]}"
        if "x-events" in content:
            data = content["x-events"]
            yield f"<h4>Events</h4><p>{', '.join(f'<code>{escape(each)}</code>' for each in data)}</p>"
            yield _schema(document, next(iter(data.values())))
            continue
        for schema in content["schema"].get("anyOf", [content["schema"]]):
            fields = _schema(document, schema)
            yield f"<h4>{escape(said)}</h4>{fields or f'<p>{_kind(schema)}</p>'}"


def _schema(document: dict[str, Any], schema: dict[str, Any], within: tuple[str, ...] = ()) -> str:
    """Return the fields of a schema."""
    if "$ref" not in schema:
        return ""
    name = _name(schema)
    whole = document["components"]["schemas"][name]
    required = whole.get("required", [])
    return "".join(
        _field(document, field, each, field in required, (*within, name))
        for field, each in whole["properties"].items()
    )


def _field(
    document: dict[str, Any], name: str, schema: dict[str, Any], required: bool, within: tuple[str, ...] = ()
) -> str:
    nested = "".join(
        f'<details><summary class="quiet">{escape(_name(each))}</summary>'
        f'<div class="inside">{_schema(document, each, within)}</div></details>'
        for each in _refs(schema)
        if _name(each) not in within
    )
    star = "*" if required else ""
    where = " in the path" if schema.get("in") == "path" else ""
    return (
        f'<div class="field"><code>{escape(name)}</code>{star} '
        f'<span class="quiet">{escape(_kind(schema))}{where}{escape(_default(schema))}</span>'
        f"<p>{_text(schema.get('description', ''))}{_choices(schema)}</p>{nested}</div>"
    )


def _name(schema: dict[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _parts(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a schema and those it is made of, but not the fields of classes."""
    yield schema
    inner = [*schema.get("anyOf", ()), *schema.get("prefixItems", ())]
    for name in ("items", "additionalProperties"):
        if isinstance(schema.get(name), dict):
            inner.append(schema[name])
    for each in inner:
        yield from _parts(each)


def _refs(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [each for each in _parts(schema) if "$ref" in each]


def _choices(schema: dict[str, Any]) -> str:
    found = [each["enum"] for each in _parts(schema) if "enum" in each]
    if not found:
        return ""
    return " One of " + ", ".join(f"<code>{escape(str(each))}</code>" for each in found[0]) + "."


def _default(schema: dict[str, Any]) -> str:
    default = schema.get("default")
    return "" if default in (None, "", [], {}) else f", {json.dumps(default)} if absent"


def _kind(schema: dict[str, Any]) -> str:
    """Return a type in a few words."""
    if "$ref" in schema:
        return _name(schema)
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"])
    if "enum" in schema and "type" not in schema:
        return "string"
    kind = schema.get("type", "any JSON")
    if kind == "array" and "prefixItems" in schema:
        return f"[{', '.join(_kind(each) for each in schema['prefixItems'])}]"
    return f"list of {_kind(schema.get('items', {}))}" if kind == "array" else str(kind)


def _errors(responses: dict[str, Any]) -> str:
    return "".join(
        f'<div class="field"><code>{status}</code> {escape(each["description"])}</div>'
        for status, each in responses.items()
        if status != "200"
    )


def curl(path: str, method: str, operation: dict[str, Any]) -> str:
    """Return a curl command that calls an operation."""
    known = {each["name"]: each["example"] for each in operation["parameters"] if "example" in each}
    places = set(re.findall(r"\{(\w+)\}", path))
    query = urlencode({name: value for name, value in known.items() if name not in places})
    place = path.format(**known) + (f"?{query}" if query else "")
    how = "" if method == ("post" if "requestBody" in operation else "get") else f"-X {method.upper()} "
    streams = "text/event-stream" in operation["responses"]["200"]["content"]
    said = f"curl {'-N ' if streams else ''}{how}'{_HERE}{place}'"
    if "requestBody" not in operation:
        return said
    body = operation["requestBody"]["content"]["application/json"]["example"]
    return f"{said} -H 'Content-Type: application/json' -d '{json.dumps(body)}'"

"""Write docs/REFERENCE.md: every public class, method and signature of the client, from the code itself."""

import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import forebay
from forebay.client import types
from forebay.client.sync import transactions, values

PLACE = Path(__file__).parent.parent / "docs" / "REFERENCE.md"
HEAD = """# Reference of the Python client

Generated from the code by `tools/make_reference.py`. [PYTHON.md](PYTHON.md) explains with examples that run;
[PROTOCOL.md](PROTOCOL.md) says what each operation does. `Client` has the methods of `SyncClient`, to be
awaited (those that yield, with `async for`).
"""
GENERATED = re.compile(r"<object object at 0x[0-9a-f]+>|<factory>")
VARIANCE = re.compile(r"[~+](?=[A-Z])")
"""What stands before the name of a type variable."""
PATHS = re.compile(r"\b(?:[a-z_]+\.)+(?=[A-Za-z])")


def main() -> int:
    made = reference()
    if "--check" in sys.argv:
        if made != PLACE.read_text():
            sys.stderr.write("docs/REFERENCE.md is not what the code says: run 'make reference'\n")
        return int(made != PLACE.read_text())
    PLACE.write_text(made)
    return 0


def reference() -> str:
    """Return the whole page."""
    public = {name: getattr(forebay, name) for name in sorted(forebay.__all__) if not name.startswith("_")}
    classes = {name: each for name, each in public.items() if inspect.isclass(each)}
    errors = {name: each for name, each in classes.items() if issubclass(each, BaseException)}
    functions = {name: each for name, each in public.items() if not inspect.isclass(each)}
    others = {**_classes_of(types), **_classes_of(values), **_classes_of(transactions)}
    parts = [HEAD, "## Classes\n"]
    parts += [_class(name, each) for name, each in classes.items() if name not in errors and name != "Client"]
    parts += ["## Functions\n", *(_callable(name, each) for name, each in functions.items())]
    parts += ["## Errors\n", *(f"- **`{name}`**: {_line(each)}" for name, each in errors.items())]
    parts += ["\n## What methods take and return\n"]
    parts += [_class(name, each) for name, each in sorted(others.items()) if name not in classes]
    return "\n".join(parts).rstrip() + "\n"


def _classes_of(module: ModuleType) -> dict[str, Any]:
    found = vars(module).items()
    return {
        name: each
        for name, each in found
        if inspect.isclass(each) and each.__module__ == module.__name__ and not name.startswith("_")
    }


def _class(name: str, kind: Any) -> str:
    """Return the section of a class: its fields, then its methods."""
    parts = [f"### {name}\n", _text(kind) + "\n"]
    fields = {key: value for key, value in inspect.get_annotations(kind).items() if key[0] != "_"}
    parts += [f"- `{key}: {_type(value)}`" for key, value in fields.items()]
    if fields:
        parts.append("")
    if "__init__" in vars(kind):
        parts.append(_callable(name, vars(kind)["__init__"]))
    for key, each in methods_of(kind).items():
        if isinstance(each, property):
            returns = inspect.signature(each.fget).return_annotation if each.fget else Any
            parts.append(f"- `{key}: {_type(returns)}` {_line(each)}".rstrip())
        else:
            parts.append(_callable(key, each))
    return "\n".join(parts) + "\n"


def methods_of(kind: Any) -> dict[str, Any]:
    """Return the public methods and properties of a class, those of its own bases included, by name."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("forebay."):
            for key, each in vars(base).items():
                if not key.startswith("_") and (inspect.isfunction(each) or isinstance(each, property)):
                    found[key] = each
    return found


def _callable(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    taken = [each for each in signature.parameters.values() if each.name != "self"]
    shown = str(signature.replace(parameters=taken))
    if function.__name__ == "__init__":
        shown = shown.removesuffix(" -> None")
    is_coroutine = inspect.iscoroutinefunction(function)
    return f"- `{'await ' * is_coroutine}{name}{_type(shown)}` {_line(function)}".rstrip()


def _type(annotation: Any) -> str:
    """Return an annotation without modules and quotes."""
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return VARIANCE.sub("", PATHS.sub("", GENERATED.sub("…", text))).replace("'", "")


def _text(described: Any) -> str:
    return _code(inspect.cleandoc(described.__doc__ or "").split(">>>")[0].strip())


def _line(described: Any) -> str:
    """Return a docstring on one line."""
    return " ".join(_text(described).split())


def _code(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    sys.exit(main())

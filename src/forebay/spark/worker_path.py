"""What slows Spark's Python workers down, taken out of their way."""

import sys
from pathlib import PurePath


def leave_out_spark_core() -> None:
    """Take Spark's own jar off the path on which Python looks for modules: there are none in it.

    Before every task Spark has Python forget what it knows of its path. Then it reads the list of everything
    in the jar, twice: 80 ms of a task that may have 100.
    """
    jars = [each for each in sys.path if _is_spark_core(each)]
    sys.path[:] = [each for each in sys.path if each not in jars]
    for known in list(sys.path_importer_cache):
        if any(known == jar or known.startswith(f"{jar}/") for jar in jars):
            del sys.path_importer_cache[known]


def _is_spark_core(path: str) -> bool:
    """Whether it is that jar; others may well have Python in them.

    >>> list(map(_is_spark_core, ["/spark/jars/spark-core_2.13-4.3.0.jar", "/spark/jars/graphframes.jar"]))
    [True, False]
    """
    name = PurePath(path).name
    return name.startswith("spark-core_") and name.endswith(".jar")

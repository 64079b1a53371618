"""ANALYSES: a queue as a table and as a stream, on PySpark.

    import forebay.spark
    spark = forebay.spark.session("report")
    spark.read.format("forebay").option("queue", "orders").load()

Needs the extra ``forebay[spark]``. The format registers itself: ``pyspark_forebay`` is all Spark looks for.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.spark.start import session as session


def __getattr__(name: str) -> object:
    """Import ``session`` on first use: a worker that only reads does not need it."""
    if name == "session":
        from forebay.spark.start import session

        return session
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

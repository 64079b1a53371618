"""Makes ``format("forebay")`` known to Spark, which imports every module named ``pyspark_…`` by itself."""

from forebay.spark.source import Forebay as DefaultSource

__all__ = ["DefaultSource"]

"""Makes ``format("penstock")`` known to Spark, which imports every module named ``pyspark_…`` by itself."""

from penstock.spark.source import Penstock as DefaultSource

__all__ = ["DefaultSource"]

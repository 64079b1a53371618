"""What is said of columns before Spark asks for rows."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from penstock.spark.options import COLUMNS, BadOption, source_options
from penstock.spark.schemas import schema_of


def schema(**options: str) -> str:
    return schema_of(source_options({"queue": "q", **options}))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("value,ofset", "'ofset' is none of them; did you mean offset?"),
        ("Value", "'Value' is none of them; did you mean value?"),
        ("value,colour", "'colour' is none of them"),
        (" , ", "some of tenant"),
    ],
)
def test_a_column_that_there_is_not_is_named_and_so_are_those_there_are(columns: str, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        schema(columns=columns)
    told = str(caught.value)
    assert 'option "columns"' in told
    assert said in told
    assert ", ".join(COLUMNS) in told


@pytest.mark.parametrize(
    ("parse", "said"),
    [
        ("id lnog", "id has one that there is not, 'lnog'; did you mean long?"),
        ("id long, name strnig", "name has one that there is not, 'strnig'; did you mean string?"),
        ("id: lnog", "did you mean long?"),
        ("struct<id: lnog>", "did you mean long?"),
        ("id array<lnog>", "did you mean long?"),
        ("id map<string, lnog>", "did you mean long?"),
        ("a struct<b: int, c: struct<d: array<int>, e: dubble>>", "e has one that there is not, 'dubble'"),
        ("a decimal(10, 2), b whatever", "b has one that there is not, 'whatever'"),
        ("a long comment 'x, y', b whatever", "b has one that there is not, 'whatever'"),
        ("`a, b` whatever", "`a, b` has one that there is not, 'whatever'"),
        ("id", "id has none"),
        ("id, name string", "id has none"),
        ("a struct<b>", "b has none"),
    ],
)
def test_a_type_that_there_is_not_is_named_with_its_column(parse: str, said: str) -> None:
    with pytest.raises(BadOption) as caught:
        schema(parse=parse)
    assert 'option "parse"' in str(caught.value)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "parse",
    [
        "id long",
        "ID LONG, Name String NOT NULL COMMENT 'x, y lnog < '",
        "struct<id: long>",
        "STRUCT<id long, b: STRUCT<c: ARRAY<ARRAY<INT>>, d: boolean>>",
        "`a b` long, `c``d` array<struct<x: string collate UTF8_LCASE>>, `e, f` byte",
        "a timestamp without time zone, b timestamp with local time zone, c timestamp_ntz, d timestamp_ltz",
        "a dec(3,1), b numeric(3), c real, d tinyint, e smallint, f short, g integer, h bigint, i float",
        "a char(3), b varchar(5), c character(2), d binary, e void, f variant, g date, h time(3), i decimal",
        "a interval year to month, b interval day to second, c interval, d map<string, array<int>>",
        "long long, string string, struct struct<array: array<int>>",
        "`größe` double, _x int, id/* lnog */ int",
        "a int, -- lnog\nb int",
    ],
)
def test_what_spark_takes_is_left_to_it(parse: str, spark: SparkSession) -> None:
    kinds = StructType.fromDDL(schema(parse=parse))
    assert isinstance(kinds, StructType)
    assert isinstance(kinds["value"].dataType, StructType)


@pytest.mark.parametrize("parse", ["id ][", "id long,, b int", "id long b int", "id 5", "a:: int"])
def test_what_is_wrong_in_other_ways_is_left_to_spark_too(parse: str) -> None:
    assert parse in schema(parse=parse)

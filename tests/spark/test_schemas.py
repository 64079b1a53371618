"""What is said of columns before Spark asks for rows."""

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    VariantType,
    YearMonthIntervalType,
)

from forebay.spark.options import COLUMNS, BadOption, source_options
from forebay.spark.schemas import ABOUT, BadRows, check_schema, schema_of


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
        (str(StructType().add("a", LongType())), "of a StructType, its simpleString()"),
        (StructType().add("a", LongType()).json(), "of a StructType, its simpleString()"),
        ("array<long>", "columns with their types"),
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


TEXT, NUMBER = StringType(), IntegerType()


def struct(*fields: tuple[str, DataType]) -> StructType:
    return StructType([StructField(*each) for each in fields])


def refused(schema: StructType, overwrite: bool = False, *, streaming: bool = False) -> str:
    with pytest.raises(BadRows) as caught:
        check_schema(schema, overwrite, streaming=streaming)
    return str(caught.value)


def test_a_queue_is_only_added_to() -> None:
    assert 'use mode("append")' in refused(struct(("value", TEXT)), overwrite=True)
    said = refused(struct(("value", TEXT)), overwrite=True, streaming=True)
    assert 'outputMode "complete"' in said
    assert 'use outputMode("append")' in said


@pytest.mark.parametrize(("name", "said"), [("Value", "mean value"), ("Priority", "mean priority")])
def test_a_column_in_another_case_is_not_taken_for_payload(name: str, said: str) -> None:
    with pytest.raises(BadRows, match=said):
        check_schema(StructType().add("a", LongType()).add(name, LongType()), overwrite=False)


def test_a_column_beside_value_that_there_is_not_is_named_and_so_are_those_there_are() -> None:
    said = refused(struct(("value", TEXT), ("prioritty", NUMBER), ("colour", TEXT)))
    assert "drop prioritty, colour" in said
    assert ", ".join(ABOUT) in said
    assert said.endswith("did you mean priority?")


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (VariantType(), "value is variant"),
        (struct(("a", NUMBER), ("v", VariantType())), "value.v is variant"),
        (struct(("a", ArrayType(struct(("v", VariantType()))))), "value.a[].v is variant"),
        (MapType(TEXT, VariantType()), "value[] is variant"),
        (YearMonthIntervalType(), "value is interval year to month"),
        (struct(("i", CalendarIntervalType())), "value.i is interval"),
        (struct(("m", MapType(BooleanType(), TEXT))), "value.m is a map whose keys are boolean"),
        (MapType(DecimalType(3, 1), TEXT), "value is a map whose keys are decimal(3,1)"),
        (MapType(struct(("a", TEXT)), TEXT), "value is a map whose keys are struct<a:string>"),
        (ArrayType(MapType(ArrayType(TEXT), TEXT)), "value[] is a map whose keys are array<string>"),
    ],
    ids=str,
)
def test_types_that_json_has_no_word_for_are_refused_wherever_they_are(kind: DataType, said: str) -> None:
    told = refused(struct(("value", kind)))
    assert told.startswith(said)
    assert "to_json(struct(…)) AS value" in told
    assert refused(struct(("x", struct(("y", kind))))).startswith(said.replace("value", "x.y", 1))


@pytest.mark.parametrize(
    "kind",
    [
        struct(("a", NUMBER), ("A", NUMBER)),
        MapType(NUMBER, TEXT),
        MapType(TEXT, MapType(TEXT, BinaryType())),
        DayTimeIntervalType(),
    ],
    ids=str,
)
def test_types_that_json_has_a_word_for_are_taken(kind: DataType) -> None:
    check_schema(struct(("value", kind), ("headers", MapType(TEXT, TEXT))), False)


def test_names_that_are_there_twice_are_refused() -> None:
    assert refused(struct(("a", TEXT), ("b", TEXT), ("a", NUMBER))).startswith("column a is there twice")
    assert refused(struct(("value", TEXT), ("value", TEXT))).startswith("column value is there twice")
    inside = struct(("value", struct(("a", struct(("b", TEXT), ("b", TEXT))))))
    assert refused(inside).startswith("field value.a.b is there twice")


@pytest.mark.parametrize(
    "kind", [TEXT, MapType(TEXT, NUMBER), MapType(NUMBER, TEXT), ArrayType(TEXT)], ids=str
)
def test_headers_are_text_by_text(kind: DataType) -> None:
    said = refused(struct(("value", TEXT), ("headers", kind)))
    assert said == f"column headers must be map<string,string>, not {kind.simpleString()}"

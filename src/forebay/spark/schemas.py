"""Schemas of reads and writes: the columns, and which types payloads can be read as and written from."""

import re

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    CalendarIntervalType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    IntegralType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
    YearMonthIntervalType,
)

from forebay.spark.options import RAW, BadOption, SourceOptions, meant

TYPES = {
    "tenant": "string",
    "queue": "string",
    "partition": "string",
    "offset": "bigint",
    "id": "bigint",
    "created_at": "timestamp",
    "value": "string",
    "headers": "map<string,string>",
    "tags": "array<string>",
    "priority": "int",
}
READABLE = (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimestampType,
)
NUMBERS = (ByteType, ShortType, IntegerType, LongType)
ABOUT = {
    "partition": (StringType,),
    "priority": NUMBERS,
    "delay_ms": NUMBERS,
    "unique_key": (StringType,),
    "headers": (MapType,),
    "tags": (ArrayType,),
}
"""Columns with delivery attributes, and their types; all others are part of the payload."""
KEYS = (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    TimestampNTZType,
    TimeType,
    TimestampType,
)
"""Types of map keys that become names in JSON."""
INSTEAD = "let Spark write it: to_json(struct(…)) AS value"
WORDS = (
    *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real"),
    *("double", "decimal", "dec", "numeric", "string", "char", "character", "varchar", "date", "time"),
    *("timestamp", "timestamp_ntz", "timestamp_ltz", "binary", "interval", "void", "variant", "geometry"),
    *("geography", "array", "map", "struct"),
)
"""First words of types in Spark's syntax."""
_TOKEN = re.compile(r"""\s*(`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|\w+|\S)""")


def schema_of(options: SourceOptions) -> str:
    """Return the columns of a read, as text that Spark parses."""
    fields = [f"{name} {TYPES[name]}" for name in options.columns]
    if is_typed(options):
        parse = options.parse
        _check_words(parse)
        kind = parse if parse.lower().startswith("struct<") else f"struct<{parse}>"
        fields = [f"value {kind}" if each.startswith("value ") else each for each in fields]
        fields.append("_corrupt string")
    return ", ".join(fields)


def _check_words(parse: str) -> None:
    """Raise if a column has no type, or an unknown one.

    Spark parses the text later, outside of our code, and its error points to a wrong place. So what is sure
    to be wrong is reported here: the word where a type begins. The rest is left to Spark.
    """
    if parse.startswith(("StructType(", "{", "array<")):
        raise BadOption(
            "parse", 'columns with their types ("id long, name string"); of a StructType, its simpleString()'
        )
    if "--" in parse or "/*" in parse:
        return  # SQL comments
    brackets = ["struct"]
    """What each open bracket belongs to."""
    wanted = "" if parse.lower().startswith("struct<") else "name"
    name = before = ""
    depth = 0
    for token in [*_TOKEN.findall(parse), ""]:
        if wanted == "name":
            if not token.isidentifier() and not token.startswith("`"):
                return
            name, wanted = token, "type"
        elif wanted == "type" and token != ":":
            if token in ("", ",", ">"):
                raise BadOption("parse", f"columns with their types (id long, name string); {name} has none")
            if token.isidentifier() and token.lower() not in WORDS:
                raise BadOption(
                    "parse",
                    f"columns with their types (id long, name string); {name} has one that there is not, "
                    f"{token!r}{meant(token, WORDS)}",
                )
            wanted = ""
        elif token == "<" or (token == "," and not depth):
            if token == "<":
                brackets.append(before.lower())
            wanted = "name" if brackets[-1] == "struct" else "type"
        elif token == ">" and len(brackets) > 1:
            brackets.pop()
        depth += (token == "(") - (token == ")")
        before = token


def is_typed(options: SourceOptions) -> bool:
    return options.parse != RAW and "value" in options.columns


def _check_type(where: str, kind: DataType) -> None:
    """Raise unless payloads can be read as a type."""
    if isinstance(kind, StructType):
        for field in kind:
            if isinstance(field.dataType, DateType | DecimalType):
                raise BadOption(
                    "parse",
                    f"without dates and decimals inside of others: take string for {where}.{field.name}",
                )
            if not field.nullable:
                raise BadOption("parse", f"without NOT NULL: a field may be missing ({where}.{field.name})")
            _check_type(f"{where}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        if isinstance(kind.elementType, DateType | DecimalType):
            raise BadOption("parse", f"without dates and decimals in arrays: take another type for {where}")
        _check_type(f"{where}[]", kind.elementType)
    elif not isinstance(kind, READABLE):
        raise BadOption(
            "parse",
            f"made of numbers, strings, booleans, dates, timestamps, arrays and structs; {where} is "
            f"{kind.simpleString()}: leave it out, or read it raw",
        )


def checked(schema: StructType, options: SourceOptions) -> StructType:
    """Return the schema of a read, as Spark parsed it; raise if it was changed, or can't be read."""
    given = {field.name: field.dataType for field in schema}
    wanted = [*options.columns, *(["_corrupt"] if is_typed(options) else [])]
    changed = [
        name
        for name in options.columns
        if name not in given
        or (given[name].simpleString() != TYPES[name] and not (name == "value" and is_typed(options)))
    ]
    if changed or list(given) != wanted:
        raise BadOption("parse", 'given instead of .schema(…): columns such as "id long, name string"')
    if is_typed(options):
        kind = given["value"]
        if not isinstance(kind, StructType):
            raise BadOption("parse", f'"{RAW}", or columns such as "id long, name string"')
        if not kind.fields or len({field.name for field in kind}) < len(kind.fields):
            raise BadOption("parse", "at least one column, and none twice")
        for field in kind:
            if not field.nullable:
                raise BadOption("parse", f"without NOT NULL: a field may be missing ({field.name})")
            _check_type(field.name, field.dataType)
    return schema


class BadRows(ValueError):
    """Rows that can't become messages, and what to do."""


def check_schema(schema: StructType, overwrite: bool, *, streaming: bool = False) -> None:
    """Raise unless rows of a schema can be written."""
    if overwrite and streaming:
        raise BadRows(
            'outputMode "complete" can\'t be: it writes the whole result again with every batch, and a queue '
            'is a log that rows are only ever added to; use outputMode("append"), with a watermark if there '
            "is an aggregation, or foreachBatch"
        )
    if overwrite:
        raise BadRows(
            'mode "overwrite" can\'t be: a queue is a log that others read, so rows are only ever added; '
            'use mode("append"), and another queue if it shall begin anew'
        )
    _check_twice("column ", schema)
    for field in schema:
        lower = field.name.lower()
        if field.name != lower and lower in (*ABOUT, "value"):
            raise BadRows(f"column {field.name}: do you mean {lower}? Name it so, or otherwise")
        _check_about(field.name, field.dataType)
    names = [field.name for field in schema if field.name not in ABOUT]
    if not names:
        raise BadRows("a column value is needed, or others that make up a JSON object")
    if "value" in names and len(names) > 1:
        others = [name for name in names if name != "value"]
        raise BadRows(
            f"beside value only {', '.join(ABOUT)} are written; drop {', '.join(others)}, or put all into "
            f"one struct: to_json(struct(…)) AS value{meant(others[0], ABOUT)}"
        )
    for name in names:
        _check_writable(name, schema[name].dataType)


def _check_about(name: str, kind: DataType) -> None:
    """Raise unless a column with a delivery attribute has its type."""
    kinds = ABOUT.get(name)
    if name in ("headers", "tags") and kind.simpleString() != TYPES[name]:
        raise BadRows(f"column {name} must be {TYPES[name]}, not {kind.simpleString()}")
    if kinds is not None and not isinstance(kind, kinds):
        wanted = " or ".join(each.typeName() for each in kinds)
        raise BadRows(f"column {name} must be {wanted}, not {kind.simpleString()}")


def _check_twice(what: str, kind: StructType) -> None:
    names = kind.fieldNames()
    for name in names:
        if names.count(name) > 1:
            raise BadRows(f"{what}{name} is there twice, and JSON has one: rename or drop the other")


def _check_writable(where: str, kind: DataType) -> None:
    """Raise unless values of a type can be encoded as JSON."""
    if isinstance(kind, StructType):
        _check_twice(f"field {where}.", kind)
        for field in kind:
            _check_writable(f"{where}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_writable(f"{where}[]", kind.elementType)
    elif isinstance(kind, MapType):
        if not isinstance(kind.keyType, KEYS):
            raise BadRows(
                f"{where} is a map whose keys are {kind.keyType.simpleString()}, and names in JSON are text: "
                f"{INSTEAD}"
            )
        _check_writable(f"{where}[]", kind.valueType)
    elif isinstance(kind, VariantType | YearMonthIntervalType | CalendarIntervalType):
        raise BadRows(f"{where} is {kind.simpleString()}, which the sink has no JSON for: {INSTEAD}")

"""The columns of a read: what Spark is told of them, and whether payloads can be read so."""

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.spark.options import RAW, BadOption, SourceOptions

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


def schema_of(options: SourceOptions) -> str:
    """The columns of a read, in words that Spark parses."""
    fields = [f"{name} {TYPES[name]}" for name in options.columns]
    if is_typed(options):
        parse = options.parse
        kind = parse if parse.lower().startswith("struct<") else f"struct<{parse}>"
        fields = [f"value {kind}" if each.startswith("value ") else each for each in fields]
        fields.append("_corrupt string")
    return ", ".join(fields)


def is_typed(options: SourceOptions) -> bool:
    return options.parse != RAW and "value" in options.columns


def _check_type(where: str, kind: DataType) -> None:
    """Raise unless payloads can be read as a type."""
    if isinstance(kind, StructType):
        for field in kind:
            if isinstance(field.dataType, DateType | DecimalType):
                raise BadOption(
                    "parse", f"without dates inside of others: take string for {where}.{field.name}"
                )
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
    """The schema of a read, as Spark parsed it; raise if somebody changed it, or it can't be read so."""
    given = {field.name: field.dataType for field in schema}
    wanted = [*options.columns, *(["_corrupt"] if is_typed(options) else [])]
    changed = [
        name
        for name in options.columns
        if name not in given
        or (given[name].simpleString() != TYPES[name] and not (name == "value" and is_typed(options)))
    ]
    if changed or list(given) != wanted:
        raise BadOption("parse", "what says how payloads are read: leave out .schema(…)")
    if is_typed(options):
        kind = given["value"]
        if not isinstance(kind, StructType):
            raise BadOption("parse", f'"{RAW}", or columns such as "id long, name string"')
        if not kind.fields or len({field.name for field in kind}) < len(kind.fields):
            raise BadOption("parse", "at least one column, and none twice")
        for field in kind:
            _check_type(field.name, field.dataType)
    return schema

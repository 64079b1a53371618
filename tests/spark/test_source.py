"""A queue as a table."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import functions as f

from tests.serving import push
from tests.spark.talking import Place, values


def failure(frame_of: Any) -> str:
    """What Spark says when a query fails."""
    with pytest.raises(PySparkException) as caught:
        frame_of()
    return str(caught.value)


def test_every_message_is_a_row_with_where_it_lies_and_what_is_known_of_it(place: Place) -> None:
    place.push({"a": 1}, "two", None, 4.5, headers={"k": "v"}, tags=["t", "u"], priority=7)
    place.push([5], partition="eu")
    rows = place.table().orderBy("partition", "offset").collect()
    reply = place.client.ask({"cmd": "READ", "queue": place.queue, "offset": 0})
    first = reply["runs"][0]
    assert [(row["tenant"], row["queue"], row["partition"], row["offset"], row["value"]) for row in rows] == [
        ("default", place.queue, "default", 0, '{"a": 1}'),
        ("default", place.queue, "default", 1, '"two"'),
        ("default", place.queue, "default", 2, "null"),
        ("default", place.queue, "default", 3, "4.5"),
        ("default", place.queue, "eu", 0, "[5]"),
    ]
    assert [row["id"] for row in rows[:4]] == [first["first"] + at for at in range(4)]
    pushed_at = datetime.fromtimestamp(first["created_at"] / 1000, UTC).replace(tzinfo=None)
    assert {row["created_at"] for row in rows[:4]} == {pushed_at}
    assert [row["headers"] for row in rows] == [{"k": "v"}] * 4 + [None]
    assert [row["tags"] for row in rows] == [["t", "u"]] * 4 + [None]
    assert [row["priority"] for row in rows] == [7, 7, 7, 7, 0]


def test_a_queue_that_is_empty_is_a_table_without_rows(place: Place) -> None:
    place.client.ask({"cmd": "QUEUE", "queue": place.queue, "options": {"lease_ms": 1000}})
    assert place.table().collect() == []


def test_many_messages_of_many_partitions_come_whole_and_in_order(place: Place) -> None:
    wanted = []
    for at in range(7):
        messages = [{"p": at, "n": n, "text": "x" * (n % 50)} for n in range(3_000 + at)]
        place.push(*messages[:1_000], partition=f"p{at}")
        place.push(*messages[1_000:], partition=f"p{at}")
        wanted += messages
    for options in ({}, {"minPartitions": 5}, {"bytesPerPartition": 20_000}, {"bytesPerPartition": 1 << 30}):
        frame = place.table(**options)
        assert values(frame) == wanted
        tasks = frame.rdd.getNumPartitions()
        assert tasks >= options.get("minPartitions", 1)
        if options.get("bytesPerPartition") == 1 << 30:
            assert tasks == 1, "small partitions are read together"


def test_merged_segments_have_the_times_and_attributes_of_their_messages(place: Place) -> None:
    for at in range(400):
        labels: dict[str, Any] = {"headers": {"at": str(at)}} if at % 5 == 0 else {}
        place.push(at, priority=at % 3, **labels)
    rows = place.table().orderBy("offset").collect()
    assert [row["value"] for row in rows] == [str(at) for at in range(400)]
    assert [row["priority"] for row in rows] == [at % 3 for at in range(400)]
    assert [row["headers"] for row in rows] == [{"at": str(at)} if at % 5 == 0 else None for at in range(400)]
    times = [row["created_at"] for row in rows]
    assert times == sorted(times)
    part = place.table(startingOffsets=f'{{"{place.queue}": {{"default": 101}}}}').orderBy("offset").collect()
    assert part == rows[101:]


def test_several_queues_are_one_table(place: Place) -> None:
    for name in ("a", "b", "other"):
        push(place.client, f"{place.queue}.{name}", name)
    by_list = place.table(queue=f"{place.queue}.a, {place.queue}.other")
    by_json = place.table(queue=f'["{place.queue}.a", "{place.queue}.other"]')
    assert values(by_list) == values(by_json) == ["a", "other"]
    assert values(place.table(queue=f"{place.queue}.?")) == ["a", "b"]


def test_only_some_partitions(place: Place) -> None:
    for name in ("a", "b", "c,d"):
        place.push(name, partition=name)
    assert values(place.table(partition="b")) == ["b"]
    assert values(place.table(partition='["a", "c,d"]')) == ["a", "c,d"]
    assert 'option "partition"' in failure(lambda: place.table(partition="z").count())


def test_from_one_offset_to_another(place: Place) -> None:
    place.push(*range(10))
    place.push(*range(10), partition="eu")

    def between(start: str, end: str) -> list[Any]:
        return values(place.table(startingOffsets=start, endingOffsets=end))

    name = place.queue
    assert between(f'{{"{name}": {{"default": 7}}}}', f'{{"{name}": {{"eu": 2}}}}') == [7, 8, 9, 0, 1]
    assert between("latest", "latest") == []
    assert between(f'{{"{name}": {{"default": "latest", "eu": 9}}}}', "latest") == [9]
    assert between(f'{{"{name}": {{"default": 5}}}}', f'{{"{name}": {{"default": 3, "eu": 0}}}}') == []


def test_from_one_time_to_another(place: Place) -> None:
    place.push("old")
    (run,) = place.client.ask({"cmd": "READ", "queue": place.queue, "offset": 0})["runs"]
    at = run["created_at"]
    assert values(place.table(startingOffsets=at)) == ["old"]
    assert values(place.table(startingOffsets=at + 1)) == []
    assert values(place.table(endingOffsets=at)) == []
    assert values(place.table(endingOffsets=at + 1)) == ["old"]
    text = datetime.fromtimestamp(at / 1000, UTC).isoformat()
    assert values(place.table(startingOffsets=text)) == ["old"]
    later = (datetime.now(UTC) + timedelta(days=1)).isoformat()
    assert values(place.table(startingOffsets=later)) == []


def test_filters_decide_what_is_read_where_that_is_asked_for(place: Place) -> None:
    place.push(*range(1_000))
    place.push(*range(1_000, 1_010), partition="eu")
    plain = values(place.table())
    for text in (
        "partition = 'eu'",
        "partition in ('eu', 'nowhere')",
        "partition = 'nowhere'",
        "offset >= 995",
        "offset > 3 and offset <= 7 and partition = 'default'",
        "offset = 5",
        "offset < 0",
        "created_at >= '2020-01-01' and created_at < '2100-01-01'",
        "created_at > '2100-01-01'",
        "queue = 'another'",
        "tenant = 'default' and priority = 0",
        "value like '%99%'",
        "headers is null and offset is not null",
        "not (partition = 'eu')",
    ):
        pushed = place.table(pushFilters="true").filter(text)
        assert values(pushed) == values(place.table().filter(text)), text
    plan = place.table(pushFilters="true").filter("partition = 'eu' and offset >= 3")
    assert plan.rdd.getNumPartitions() == 1
    assert "Filter" not in plan._jdf.queryExecution().optimizedPlan().toString()
    assert values(place.table()) == plain


def test_a_table_that_is_used_twice_has_all_its_rows_each_time(place: Place) -> None:
    place.push(*range(10))
    place.push(*range(5), partition="eu")
    table = place.table()
    assert table.filter("partition = 'eu'").count() == 5
    assert table.count() == 15
    assert table.filter("partition = 'eu'").union(table.filter("partition = 'default'")).count() == 15


def test_payloads_are_columns_where_their_type_is_given(place: Place) -> None:
    place.push(
        {"id": 1, "name": "one", "price": 1.5, "at": "2026-01-31T12:00:00Z", "day": "2026-01-31", "ok": True},
        {"id": 2, "items": [{"sku": "a", "n": 1}], "tags": ["x"], "unknown": {"deep": [1]}},
        {},
        {"id": "three"},
        {"id": 2.5},
        "text",
        None,
        7,
        [1],
        {"id": 9, "name": "two\nlines"},
    )
    kind = (
        "id long, name string, price double, at timestamp, day date, ok boolean, "
        "items array<struct<sku: string, n: int>>, tags array<string>"
    )
    rows = place.table(parse=kind).orderBy("offset").collect()
    assert [None if row["value"] is None else row["value"]["id"] for row in rows] == [
        1, 2, None, None, None, None, None, None, None, 9,
    ]  # fmt: skip
    assert [row["_corrupt"] for row in rows] == [
        None, None, None, '{"id": "three"}', '{"id": 2.5}', '"text"', "null", "7", "[1]", None,
    ]  # fmt: skip
    first, second = rows[0]["value"], rows[1]["value"]
    assert (first["name"], first["price"], first["ok"]) == ("one", 1.5, True)
    assert (first["at"], str(first["day"])) == (datetime(2026, 1, 31, 12), "2026-01-31")
    assert second["items"][0].asDict() == {"sku": "a", "n": 1}
    assert second["tags"] == ["x"]
    assert rows[2]["value"].asDict() == dict.fromkeys(first.asDict())
    assert rows[9]["value"]["name"] == "two\nlines"


def test_payloads_over_several_lines_are_read_too(place: Place) -> None:
    place.client.send_frame(
        b'{"cmd": "PUSH", "queue": "%s", "messages": [{\n"id":\r\n 1}, {"id": 2}]}' % place.queue.encode()
    )
    assert place.client.receive()["ok"]
    rows = place.table(parse="id int").select("value.id", "_corrupt").collect()
    assert [tuple(row) for row in rows] == [(1, None), (2, None)]


def test_misfits_among_many_are_found(place: Place) -> None:
    place.push(*({"id": "bad"} if at % 97 == 0 else {"id": at} for at in range(5_000)))
    frame = place.table(parse="id long")
    assert frame.filter("_corrupt is not null").count() == len(range(0, 5_000, 97))
    total = sum(at for at in range(5_000) if at % 97)
    assert frame.agg(f.sum("value.id")).first()[0] == total  # type: ignore[index]


def test_only_the_columns_that_are_wanted(place: Place) -> None:
    place.push(1, 2)
    frame = place.table(columns="value, offset")
    assert frame.columns == ["offset", "value"]
    assert [tuple(row) for row in frame.orderBy("offset").collect()] == [(0, "1"), (1, "2")]


def test_sql_reads_a_queue(place: Place) -> None:
    place.push(1, 2, 3)
    options = ", ".join(f"{name} '{value}'" for name, value in place.options({}).items())
    place.spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW some_queue USING forebay OPTIONS ({options})")
    assert place.spark.sql("SELECT sum(cast(value as int)) FROM some_queue").first()[0] == 6  # type: ignore[index]


# What goes wrong is said in the driver, with the option it is about.


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"queue": ""}, 'option "queue"'),
        ({"queue": "there-is-none"}, "'there-is-none' is not"),
        ({"queue": "no-such-*"}, 'option "queue"'),
        ({"server": "127.0.0.1:1"}, 'option "server"'),
        ({"server": "tcp://127.0.0.1:1"}, 'correct option "server"'),
        ({"server": "unix:///nowhere/at/all.sock"}, 'correct option "server"'),
        ({"ca": "ca.pem"}, 'option "ca"'),
        ({"colour": "red"}, 'option "colour"'),
        ({"startingofsets": "latest"}, "did you mean startingOffsets"),
        ({"startingOffsets": "yesterday"}, 'option "startingOffsets"'),
        ({"startingOffsets": '{"QUEUE": {"default": 4}}'}, "between 0 and 3"),
        ({"startingOffsets": '{"QUEUE": {"default": -1}}'}, 'option "startingOffsets"'),
        ({"startingOffsets": '{"QUEUE": {"nowhere": 1}}'}, "'nowhere'"),
        ({"startingOffsets": '{"QUEUE": 1}'}, 'option "startingOffsets"'),
        ({"startingOffsets": "{"}, 'option "startingOffsets"'),
        ({"endingOffsets": '{"QUEUE": {"default": 5}}'}, "between 0 and 3"),
        ({"minPartitions": "0"}, 'option "minPartitions"'),
        ({"minPartitions": "many"}, 'option "minPartitions"'),
        ({"maxRowsPerTrigger": "5"}, 'option "maxRowsPerTrigger"'),
        ({"failOnDataLoss": "perhaps"}, 'option "failOnDataLoss"'),
        ({"columns": "value,ofset"}, "'ofset' is none of them; did you mean offset?"),
        ({"parse": "id lnog"}, "'lnog'; did you mean long?"),
        ({"parse": "id map<string,string>"}, 'option "parse"'),
        ({"parse": "id binary"}, 'option "parse"'),
        ({"parse": "id ]["}, "struct<id ][>"),
    ],
    ids=str,
)
def test_an_error_names_the_option_and_what_to_do(place: Place, options: dict[str, str], said: str) -> None:
    place.push(1, 2, 3)
    given = {name: value.replace("QUEUE", place.queue) for name, value in options.items()}
    assert said in failure(lambda: place.table(**given).count())


def test_another_schema_is_refused(place: Place) -> None:
    place.push(1)
    reader = place.spark.read.format("forebay").options(**place.options({})).schema("value int")
    assert 'option "parse"' in failure(lambda: reader.load().count())


def test_rows_that_were_dropped_are_an_error_that_names_them_or_a_warning(place: Place) -> None:
    place.push(*range(10))
    options = {"completed_retention_ms": 0}
    place.client.ask({"cmd": "QUEUE", "queue": place.queue, "options": options})
    asked = {"cmd": "POP", "queue": place.queue, "count": 10, "wait_ms": 0, "compact": True}
    popped = place.client.ask(asked)
    place.client.ask({"cmd": "ACK", "lease": popped["lease"]})
    place.client.ask({"cmd": "PURGE", "queue": place.queue, "states": ["completed"]})
    place.push(10)
    assert values(place.table()) == [10], "the earliest is what is there"
    start = f'{{"{place.queue}": {{"default": 4}}}}'
    said = failure(lambda: place.table(startingOffsets=start).count())
    assert "offsets 4 up to 10" in said
    assert "failOnDataLoss" in said
    assert values(place.table(startingOffsets=start, failOnDataLoss="false")) == [10]


@pytest.mark.parametrize("parse", ["a long not null", "a struct<b: long not null>"])
def test_a_column_that_may_not_be_missing_is_refused(place: Place, parse: str) -> None:
    place.push({})
    with pytest.raises(PySparkException, match="without NOT NULL"):
        place.table(parse=parse).collect()

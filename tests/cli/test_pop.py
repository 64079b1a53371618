"""forebay pop, ack and nack."""

import re
import threading

import pytest
from msgspec import Raw

from forebay.client.sync.client import SyncClient
from forebay.core.errors import Conflict
from tests.cli.running import Run


def test_pop_prints_ids_and_payloads_and_how_to_go_on(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, {"n": 2}, 3])
    done = cli("pop", queue, "--count", "2")
    assert done.code == 0
    assert re.fullmatch(r'\d+\t1\n\d+\t\{"n":2\}\n', done.out)
    hint = re.search(r"forebay ack (\d+)$", done.err.strip())
    assert hint
    assert client.ack(lease=hint[1]).count == 2


def test_pop_prints_json_one_object_a_line(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [{"n": 1}, 2], partition="x", tags=["t"], headers={"k": "v"}, priority=3)
    done = cli("pop", queue, "--count", "5", "--json")
    assert done.err == ""
    first, second = done.objects
    assert list(first) == [
        "id",
        "queue",
        "partition",
        "offset",
        "payload",
        "created_at",
        "failures",
        "priority",
        "lease",
        "expires_at",
        "headers",
        "tags",
    ]
    assert (first["payload"], second["payload"]) == ({"n": 1}, 2)
    assert (first["queue"], first["partition"], first["priority"]) == (queue, "x", 3)
    assert (first["headers"], first["tags"]) == ({"k": "v"}, ["t"])
    assert client.ack(lease=first["lease"]).count == 2


def test_a_payload_is_printed_as_it_was_written(cli: Run, queue: str) -> None:
    cli("push", queue, '{"b": 1.50,  "a": 1e2}')
    assert '{"b": 1.50,  "a": 1e2}' in cli("pop", queue, "--json").out


def test_a_payload_that_was_written_on_several_lines_is_printed_on_one(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push_many(queue, [Raw(b'{"a":\r\n [1,\n2]}')] * 3)
    assert cli("pop", queue, "--json").object["payload"] == {"a": [1, 2]}
    assert cli("pop", queue).out.endswith('\t{"a":   [1, 2]}\n')
    assert len(cli("tail", queue, "--from-start", "--count", "3").rows) == 3
    assert len(cli("messages", queue).rows) == 1 + 3


def test_pop_of_an_empty_queue_has_nothing_to_do(cli: Run, queue: str) -> None:
    done = cli("pop", queue)
    assert (done.code, done.out) == (4, "")
    assert done.err == f"nothing to pop from {queue}\n"
    quiet = cli("pop", queue, "--json", "--wait-ms", "1")
    assert (quiet.code, quiet.out, quiet.err) == (4, "", "")


def test_pop_with_ack_settles_what_it_printed(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2])
    done = cli("pop", queue, "--ack")
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("\t1\n")
    (group,) = client.groups(queue)
    assert (group.counts.waiting, group.counts.active, group.counts.completed) == (1, 0, 1)


def test_pop_waits_for_what_is_pushed_meanwhile(cli: Run, client: SyncClient, queue: str) -> None:
    pusher = threading.Thread(target=client.push, args=(queue, "here"))
    pusher.start()
    done = cli("pop", queue, "--wait-ms", "30000", "--json")
    pusher.join()
    assert done.object["payload"] == "here"


def test_pop_takes_a_group_a_partition_and_a_lease_time(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, "x", partition="x")
    client.push(queue, "y", partition="y")
    given = ["--group", "audit", "--partition", "y", "--lease-ms", "7200000", "--json"]
    job = cli("pop", queue, *given).object
    assert job["payload"] == "y"
    assert job["expires_at"] - job["created_at"] >= 7_200_000
    assert client.pop(queue, 10).payloads == ["x", "y"]
    assert client.pop(queue, 10, group="audit").payloads == ["x"]


def test_ack_of_a_lease_settles_all_of_it(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2])
    done = cli("ack", client.pop(queue, 2).lease or "")
    assert (done.code, done.out, done.err) == (0, "acked 2\n", "")
    assert client.groups(queue)[0].counts.completed == 2


def test_ack_of_ids_settles_those_that_are_leased_and_names_the_rest(
    cli: Run, client: SyncClient, queue: str
) -> None:
    fresh = str(client.push_many(queue, [1, 2, 3]).ids[-1])
    leased, other = (str(message.id) for message in client.pop(queue, 2))
    done = cli("ack", "--id", leased, "--id", fresh)
    assert (done.code, done.out, done.err) == (0, "acked 1\n", f"not leased: {fresh}\n")
    assert cli("ack", "--id", other, "--json").object == {"count": 1, "refused": []}
    done = cli("ack", "--id", other)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("forebay: conflict: not leased")


def test_ack_of_ids_is_for_the_group_that_popped_them(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    (message,) = client.pop(queue, group="audit")
    assert cli("ack", "--id", str(message.id)).code == 1
    assert cli("ack", "--id", str(message.id), "--group", "audit").out == "acked 1\n"


def test_ack_of_a_stale_lease_is_a_conflict(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    batch = client.pop(queue)
    client.ack(batch)
    done = cli("ack", batch.lease or "")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("forebay: conflict: the lease is not live")


@pytest.mark.parametrize("name", ["ack", "nack"])
def test_ack_and_nack_of_nothing_say_what_is_missing(name: str, cli: Run) -> None:
    done = cli(name)
    assert (done.code, done.err) == (1, f"forebay: say what to {name}: a LEASE, or --id ID\n")


def test_nack_brings_messages_back_after_the_delay_with_the_error(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push_many(queue, [1, 2])
    first, second = batch = client.pop(queue, 2)
    given = ["--error", "no such address", "--delay-ms", "60000"]
    assert cli("nack", "--id", str(first.id), *given, "--json").object == {"count": 1, "refused": []}
    seen = client.message(first.id)
    assert (seen.state, seen.error, seen.failures) == ("delayed", "no such address", 1)
    assert cli("nack", batch.lease or "", "--delay-ms", "0").out == "nacked 1\n"
    assert client.pop(queue)[0].id == second.id
    with pytest.raises(Conflict):
        client.nack(first.id)
    assert cli("nack", "--id", str(first.id)).code == 1

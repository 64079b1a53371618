"""forebay queues, queue …, groups … and seek."""

import pytest

from forebay.client.sync.client import SyncClient
from forebay.core.errors import NotFound
from tests.cli.running import Run, Terminal
from tests.serving import Server


def test_queues_are_a_table_in_columns(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(10))
    client.push(f"{queue}-with-a-long-name", 1)
    client.push(queue, 1, delay_ms=3_600_000)
    client.pause(f"{queue}-with-a-long-name")
    client.ack(client.pop(queue, 3))
    client.pop(queue, 2)
    done = cli("queues")
    assert done.err == ""
    head = ["QUEUE", "GROUP", "WAITING", "DELAYED", "DEFERRED", "ACTIVE", "COMPLETED", "DEAD"]
    assert done.rows[0] == [*head, "OLDEST", "PAUSED"]
    rows = [[*row[:8], row[9]] for row in done.rows]
    assert [queue, "default", "5", "1", "0", "2", "3", "0", "no"] in rows
    assert [f"{queue}-with-a-long-name", "-", "1", "0", "0", "0", "0", "0", "yes"] in rows
    assert len({len(line) for line in done.out.splitlines()}) == 1


def test_queues_are_json_one_object_a_line(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    client.release(client.pop(queue), defer_ms=3_600_000, error="no task send")
    client.push(queue, 2)
    found = {each["queue"]: each for each in cli("queues", "--json").objects}
    counts = {"waiting": 1, "delayed": 1, "deferred": 1, "active": 0, "completed": 0, "dead": 0}
    told = found[queue]
    (group,) = told.pop("groups")
    assert told == {"queue": queue, **counts, "paused": False, "oldest_at": group["oldest_at"]}
    assert {name: group[name] for name in counts} == counts
    assert list(found) == sorted(found)


def test_a_table_at_a_terminal_has_colours_unless_they_are_not_wanted(
    server: Server, client: SyncClient, queue: str
) -> None:
    client.push(queue, 1)
    with Terminal("queues", FOREBAY_SERVER=server.tcp) as coloured:
        assert coloured.end() == 0
    with Terminal("queues", FOREBAY_SERVER=server.tcp, NO_COLOR="1") as plain:
        assert plain.end() == 0
    assert queue in coloured.shown
    assert queue in plain.shown
    assert "\x1b[36m" in coloured.shown
    assert "\x1b[36m" not in plain.shown


def test_a_queue_is_created_with_options_and_configured_anew(
    cli: Run, client: SyncClient, queue: str
) -> None:
    made = cli("queue", "create", queue, "max_attempts=5", "durability=os", "--json").object
    assert (made["queue"], made["paused"], made["paused_until"]) == (queue, False, None)
    assert made["options"]["max_attempts"] == 5
    assert made["options"]["durability"] == "os"
    given = ["lease_ms=1000", 'rate_limit={"limit": 5, "per_ms": 1000}', "dead_letters=false"]
    assert cli("queue", "configure", queue, *given).code == 0
    options = client.queue(queue).options
    assert (options["lease_ms"], options["dead_letters"], options["max_attempts"]) == (1000, False, 5)
    assert options["rate_limit"]["limit"] == 5


def test_configure_makes_no_queue_of_a_mistyped_name(cli: Run, client: SyncClient, queue: str) -> None:
    done = cli("queue", "configure", queue, "lease_ms=1000")
    assert done.code == 1
    assert done.err.startswith(f"forebay: not_found: there is no queue {queue}")
    with pytest.raises(NotFound):
        client.queue(queue)


def test_configure_takes_options_of_one_partition(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1, partition="x")
    assert cli("queue", "configure", queue, "retention_ms=5000", "--partition", "x").code == 0
    assert client.queue(queue).options["retention_ms"] == 0


def test_describe_shows_options_partitions_and_groups(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2], key="lane")
    client.pop(queue)
    rows = cli("queue", "describe", queue).rows
    assert ["queue", queue] in rows
    assert ["max_attempts", "3"] in rows
    assert ["lane", "0", "2", "2", "yes"] in rows
    (group,) = (row for row in rows if row[:1] == ["default"])
    assert group[1:7] == ["1", "0", "0", "1", "0", "0"]
    assert group[7].startswith("20"), "when the oldest that waits was pushed"
    shown = cli("queue", "describe", queue, "--json").object
    assert shown["partitions"][0] == {"partition": "lane", "first": 0, "end": 2, "bytes": 2, "lane": True}
    assert shown["groups"][0]["group"] == "default"
    assert shown["groups"][0]["active"] == 1


def test_a_queue_is_paused_until_a_time_and_resumed(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    done = cli("queue", "pause", queue, "--until", "2100-01-01T01:00:00+01:00")
    assert done.out == f"paused {queue} until 2100-01-01T00:00:00.000Z\n"
    assert client.queue(queue).paused_until == 4_102_444_800_000
    assert "until 2100-01-01T00:00:00.000Z" in cli("queue", "describe", queue).out
    assert cli("queue", "resume", queue, "--json").object == {"queue": queue, "paused": False}
    assert cli("queue", "pause", queue, "--json").object["paused"] is True
    assert cli("queue", "resume", queue).out == f"resumed {queue}\n"
    assert client.pop(queue).payloads == [1]


def test_drain_cancels_what_waits_and_a_dry_run_only_counts(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2, 3])
    client.pop(queue)
    assert cli("queue", "drain", queue, "--dry-run").out == f"would have cancelled 2 messages of {queue}\n"
    assert cli("queue", "drain", queue, "--yes", "--json").object == {
        "count": 2,
        "dry_run": False,
        "freed": 0,
    }
    assert cli("queue", "drain", queue, "--yes").code == 4
    assert client.groups(queue)[0].counts.active == 1


def test_purge_clears_out_the_states_that_are_named(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2, 3])
    client.push(queue, 4, delay_ms=60_000)
    given = ["queue", "purge", queue, "--yes", "--state", "delayed"]
    assert cli(*given, "--dry-run", "--json").object == {"count": 1, "dry_run": True, "freed": 0}
    assert cli(*given).out == f"cleared out 1 message of {queue}\n"
    assert client.groups(queue)[0].counts.waiting == 3
    given[-1] = "completed"
    client.ack(client.pop(queue, 3))
    assert cli(*given, "--grace-ms", "60000").code == 4
    assert cli(*given, "--limit", "2", "--json").object["count"] == 2
    assert client.groups(queue)[0].counts.completed == 1
    assert cli("queue", "purge", queue, "--yes", "--state", "active").code == 1
    client.purge(queue)
    client.push(queue, "12345678")
    client.drain(queue)
    assert cli(*given).out == f"cleared out 0 messages of {queue}, and freed 10 bytes\n"
    assert cli(*given).code == 4


def test_delete_says_what_would_go_then_deletes(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2, 3])
    dry = cli("queue", "delete", queue, "--dry-run")
    assert dry.out == f"would have deleted {queue} with 3 messages\n"
    assert client.queue(queue).queue == queue
    assert cli("queue", "delete", queue, "--yes", "--json").object["deleted"] is True
    assert cli("queue", "delete", queue, "--yes").code == 1


def test_what_can_t_be_undone_is_refused_where_nobody_can_be_asked(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push(queue, 1)
    for given in (["queue", "delete"], ["queue", "drain"], ["queue", "purge"], ["dead", "purge"]):
        done = cli(*given, queue)
        assert (done.code, "--yes" in done.err) == (1, True)
    assert client.queue(queue).partitions[0].end == 1


def test_delete_waits_for_leases_unless_it_is_forced(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    client.pop(queue)
    assert cli("queue", "delete", queue, "--yes").out.startswith(f"closed {queue}: 1 message still leased")
    assert cli("queue", "delete", queue, "--yes", "--force").out == f"deleted {queue}\n"
    assert cli("queue", "delete", queue, "--force", "--dry-run").code == 1
    other = f"{queue}-other"
    client.push(other, 1)
    client.pop(other)
    assert cli("queue", "delete", other, "--yes", "--force").out == f"deleted {other}\n"
    with pytest.raises(NotFound):
        client.queue(other)


def test_who_sits_at_a_terminal_is_asked_before_something_is_destroyed(
    server: Server, client: SyncClient, queue: str
) -> None:
    client.push(queue, 1)
    for answer, code in (("n\n", 1), ("y\n", 0)):
        with Terminal("queue", "delete", queue, FOREBAY_SERVER=server.tcp) as terminal:
            terminal.until("[y/N]")
            assert f"Delete {queue} with 1 message?" in terminal.shown
            assert client.queue(queue).queue == queue
            terminal.type(answer)
            assert terminal.end() == code, terminal.shown
        assert ("forebay: nothing was done" in terminal.shown) is bool(code)
    with pytest.raises(NotFound):
        client.queue(queue)


def test_who_says_yes_is_not_asked(server: Server, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    with Terminal("queue", "delete", queue, "--yes", FOREBAY_SERVER=server.tcp) as terminal:
        assert terminal.end() == 0
    assert "[y/N]" not in terminal.shown


# Groups.


def test_groups_are_made_listed_and_forgotten(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [1, 2])
    assert cli("groups", "create", queue, "late", "--from", "new", "--json").object["waiting"] == 0
    assert cli("groups", "create", queue, "all").out == f"the group all of {queue} is there; 2 wait for it\n"
    assert cli("groups", "create", queue, "since", "--from", "2020-01-01").code == 0
    listed = {each["group"]: each["waiting"] for each in cli("groups", "list", queue, "--json").objects}
    assert listed == {"late": 0, "all": 2, "since": 2}
    assert cli("groups", "list", queue).rows[0][0] == "GROUP"
    oldest = {each["group"]: each["oldest_at"] for each in cli("groups", "list", queue, "--json").objects}
    assert oldest["late"] is None
    assert oldest["all"] is not None
    assert cli("groups", "delete", queue, "late", "--yes").code == 0
    assert cli("groups", "delete", queue, "all", "--yes", "--json").object["deleted"] is True
    assert [each.group for each in client.groups(queue)] == ["since"]
    assert cli("groups", "delete", queue, "late", "--yes").code == 1


def test_seek_has_a_group_read_from_another_place(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, range(5))
    client.ack(client.pop(queue, 5))
    assert cli("seek", queue, "--to", "all").rows == [["PARTITION", "CURSOR"], ["default", "0"]]
    given = ["--offset", "3", "--partition", "default", "--json"]
    assert cli("seek", queue, *given).object == {"partition": "default", "cursor": 3}
    assert client.pop(queue, 9).payloads == [3, 4]
    assert cli("seek", queue, "--to", "2020-01-01T00:00", "--json").object["cursor"] == 0
    assert cli("seek", queue, "--to", "new", "--json").object["cursor"] == 5


@pytest.mark.parametrize("given", [[], ["--to", "all", "--offset", "1"], ["--offset", "1"], ["--to", "then"]])
def test_seek_explains_wrong_usage(given: list[str], cli: Run, queue: str) -> None:
    done = cli("seek", queue, *given)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("usage: forebay seek ")


@pytest.mark.parametrize("columns", [80, 120])
def test_a_terminal_cuts_errors_and_data_and_never_ids(
    server: Server, client: SyncClient, queue: str, columns: int
) -> None:
    id = client.push(queue, {"to": "x" * 200}).id
    client.nack(client.pop(queue), error="it failed, and that is a long story to be told" * 3, final=True)
    shown = {"FOREBAY_SERVER": server.tcp, "NO_COLOR": "1", "COLUMNS": str(columns)}
    for given in (["dead", "list", queue], ["messages", queue]):
        with Terminal(*given, **shown) as terminal:
            assert terminal.end() == 0
        (row,) = [line for line in terminal.shown.splitlines() if str(id) in line]
        assert row.split()[:3] == [str(id), "dead", "default"]
        assert "it fa" in row
        assert row.rstrip().endswith("…")
        assert len(row.rstrip()) <= columns

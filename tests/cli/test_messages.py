"""forebay messages, message, dead … and crons …."""

import pytest

from forebay.client.sync.client import SyncClient
from forebay.client.types import New
from tests.cli.running import Run


def killed(client: SyncClient, queue: str, *payloads: object) -> list[int]:
    """Messages that are dead letters; their ids."""
    ids = client.push_many(queue, payloads, max_attempts=1).ids
    client.nack(client.pop(queue, len(payloads)), error="went wrong\nbadly")
    return ids


def test_messages_are_browsed_by_what_they_have(cli: Run, client: SyncClient, queue: str) -> None:
    client.push_many(queue, [{"to": "ada"}, {"to": "alan"}], tags=["mail"])
    late = client.push(queue, "later", delay_ms=60_000, partition="x")

    def found(*given: str) -> list[object]:
        return [each["payload"] for each in cli("messages", queue, "--json", *given).objects]

    assert found() == [{"to": "ada"}, {"to": "alan"}, "later"]
    assert found("--limit", "1") == [{"to": "ada"}]
    assert found("--tag", "mail", "--text", "alan") == [{"to": "alan"}]
    assert found("--state", "delayed", "--group", "default") == ["later"]
    assert found("--partition", "x") == ["later"]
    created = client.message(late.id).created_at
    assert found("--before", str(created + 1), "--since", "2020-01-01") == found()
    assert cli("messages", queue, "--since", str(created + 1)).code == 4


def test_messages_are_a_table_for_people(cli: Run, client: SyncClient, queue: str) -> None:
    (id,) = killed(client, queue, {"long": "x" * 200})
    rows = cli("messages", queue).rows
    assert rows[0] == ["ID", "STATE", "PARTITION", "ENDED", "FAILURES", "ERROR", "PAYLOAD"]
    assert rows[1][:3] == [str(id), "dead", "default"]
    assert rows[1][-1].endswith("x…")


def test_what_does_not_match_is_nothing_to_do(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    done = cli("messages", queue, "--state", "dead")
    assert (done.code, done.err) == (4, f"nothing in {queue} matches\n")
    assert cli("messages", queue, "--state", "asleep").code == 1
    assert cli("messages", f"{queue}-missing").code == 1


def test_a_dead_letter_is_shown_with_its_failed_attempts(cli: Run, client: SyncClient, queue: str) -> None:
    id = client.push(queue, 1, max_attempts=1).id
    batch = client.pop(queue, worker="mailer-1")
    client.nack(batch, error="no\x1b[31m user", error_type="KeyError", traceback="line 1\nline 2")
    for command in (("dead", "show"), ("message",)):
        shown = cli(*command, str(id)).out
        assert ", by mailer-1: no\\x1b[31m user\n  line 1\n  line 2\n" in shown
        (attempt,) = cli(*command, str(id), "--json").object["attempts"]
        assert (attempt["deliveries"], attempt["error_type"]) == (1, "KeyError")
        assert attempt["worker"] == "mailer-1"


def test_one_message_is_shown_with_all_that_is_known(cli: Run, client: SyncClient, queue: str) -> None:
    id = client.push(queue, {"n": 1}, tags=["t"], headers={"k": "v"}, unique_key="u").id
    shown = dict(line.split(None, 1) for line in cli("message", str(id)).out.splitlines())
    assert (shown["id"], shown["state"], shown["headers"], shown["payload"]) == (
        str(id),
        "waiting",
        "k=v",
        '{"n":1}',
    )
    told = cli("message", str(id), "--json").object
    assert (told["id"], told["unique_key"], told["tags"], told["error"]) == (id, "u", ["t"], None)
    assert cli("message", told["uuid"], "--json").object["id"] == id


@pytest.mark.parametrize("id", ["12", "what"])
def test_a_message_that_is_not_there_is_an_error(id: str, cli: Run) -> None:
    assert cli("message", id).code == 1


# Dead letters.


def test_dead_letters_are_listed_with_their_errors_on_one_line(
    cli: Run, client: SyncClient, queue: str
) -> None:
    ids = killed(client, queue, 1, 2, 3)
    listed = cli("dead", "list", queue, "--json").objects
    assert [each["id"] for each in listed] == ids
    assert {each["error"] for each in listed} == {"went wrong\nbadly"}
    done = cli("dead", "list", queue, "--limit", "2")
    assert len(done.rows) == 3
    assert r"went wrong\nbadly" in done.out
    assert done.err == "2 of 3 dead letters; --limit shows more\n"


def test_a_list_may_be_longer_than_what_the_server_shows_at_once(
    cli: Run, client: SyncClient, queue: str
) -> None:
    ids = killed(client, queue, *range(1_200))
    listed = cli("dead", "list", queue, "--json", "--limit", "1100").objects
    assert [each["id"] for each in listed] == ids[:1_100]


def test_a_queue_without_dead_letters_has_nothing_to_list_requeue_or_purge(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push(queue, 1)
    for given in (["list", queue], ["requeue", queue], ["purge", queue, "--yes"]):
        assert cli("dead", *given).code == 4


def test_a_dead_letter_is_shown_and_a_live_message_is_none(cli: Run, client: SyncClient, queue: str) -> None:
    (id,) = killed(client, queue, 1)
    assert cli("dead", "show", str(id), "--json").object["error"] == "went wrong\nbadly"
    assert "went wrong" in cli("dead", "show", str(id)).out
    live = client.push(queue, 2).id
    done = cli("dead", "show", str(live))
    assert (done.code, done.err) == (
        1,
        f"forebay: {live} is no dead letter of the group default: it is waiting\n",
    )


def test_dead_letters_are_requeued_by_id_or_all(cli: Run, client: SyncClient, queue: str) -> None:
    first, second, third = killed(client, queue, 1, 2, 3)
    dry = cli("dead", "requeue", queue, "--dry-run")
    assert dry.out == f"would have requeued 3 dead letters of {queue}\n"
    assert client.state(first) == "dead"
    done = cli("dead", "requeue", queue, "--id", str(second), "--id", "12")
    assert (done.out, done.err) == (f"requeued 1 dead letter of {queue}\n", "not requeued: 12\n")
    assert (client.state(first), client.state(second)) == ("dead", "waiting")
    done = cli("dead", "requeue", queue, "--json")
    assert done.object == {"count": 2, "refused": [], "dry_run": False, "dependents": 0, "left": 0}
    assert client.state(third) == "waiting"
    assert cli("dead", "requeue", queue, "--id", "12").code == 1


def test_a_dry_run_of_a_requeue_shows_those_that_died_of_it(cli: Run, client: SyncClient, queue: str) -> None:
    (first,) = killed(client, queue, 1)
    parent = client.push(f"{queue}.parents", 2, depends_on=[first]).id
    dry = cli("dead", "requeue", queue, "--dry-run").out
    assert dry.endswith("would have parked 1 message again that died of these\n")
    assert "parked" not in cli("dead", "requeue", queue, "--no-dependents", "--dry-run").out
    assert client.state(parent) == "dead"
    assert cli("dead", "requeue", queue).out.endswith("parked 1 message again that died of these\n")
    assert client.state(parent) == "parked"


def test_what_can_not_be_requeued_is_said_to_be_left(cli: Run, client: SyncClient, queue: str) -> None:
    (first,) = killed(client, queue, 1)
    client.push(queue, 2, depends_on=[first])
    client.purge_dead(queue, [first])
    done = cli("dead", "requeue", queue)
    assert done.code == 4
    assert done.err.startswith("1 dead letter left: a message they depend on was cancelled or purged")


def test_dead_letters_are_purged_by_id_or_all(cli: Run, client: SyncClient, queue: str) -> None:
    first, second, third = killed(client, queue, 1, 2, 3)
    assert cli("dead", "purge", queue, "--dry-run", "--json").object["count"] == 3
    assert cli("dead", "purge", queue, "--yes", "--id", str(first), "--id", str(second)).code == 0
    assert [each.id for each in client.dead(queue).messages] == [third]
    assert cli("dead", "purge", queue, "--yes").out == f"purged 1 dead letter of {queue}\n"


# Crons.


def test_crons_are_set_listed_and_deleted(cli: Run, client: SyncClient, queue: str) -> None:
    name = f"cron-of-{queue}"
    given = ["--schedule", "0 3 * * *", "--timezone", "Europe/Rome", "--missed", "none", "--limit", "5"]
    done = cli("crons", "set", name, queue, '{"kind": "all"}', *given, "--priority", "2", "--tag", "t")
    assert done.out.startswith(f"set {name}; it comes next at ")
    (shown,) = (each for each in cli("crons", "list", "--json").objects if each["name"] == name)
    assert (shown["queue"], shown["payload"], shown["schedule"]) == (queue, {"kind": "all"}, "0 3 * * *")
    assert (shown["timezone"], shown["missed"], shown["limit"]) == ("Europe/Rome", "none", 5)
    assert name in cli("crons", "list").out
    every = cli("crons", "set", name, queue, "-5", "--every-ms", "3600000", "--json").object
    assert (every["payload"], every["every_ms"], every["schedule"]) == (-5, 3_600_000, None)
    assert cli("crons", "delete", name, "--json").object == {"name": name, "deleted": True}
    assert cli("crons", "delete", name).code == 1
    for left in client.crons():  # of other tests
        client.delete_cron(left.name)
    assert cli("crons", "list").code == 4


@pytest.mark.parametrize(
    "given", [["1"], ["1", "--schedule", "@daily", "--every-ms", "1000"], ["1", "--schedule", "often"], ["x"]]
)
def test_crons_set_explains_what_is_wrong(given: list[str], cli: Run, queue: str) -> None:
    done = cli("crons", "set", "bad", queue, *given)
    assert (done.code, done.out) == (1, "")
    assert "forebay: " in done.err


def test_a_message_is_shown_with_its_result_progress_and_log(
    cli: Run, client: SyncClient, queue: str
) -> None:
    id = client.push(queue, 1).id
    assert cli("message", str(id), "--json").object["progress"] is None
    popped = client.pop(queue)
    client.set_progress(id, 40, "halfway")
    client.log(id, "a line\x1b[31m", level="warn")
    client.ack(popped, results=[{"sent": True}])
    told = cli("message", str(id), "--json").object
    assert (told["result"], told["progress"]["progress"], told["log"][0]["level"]) == (
        {"sent": True},
        40,
        "warn",
    )
    lines = cli("message", str(id)).out.splitlines()
    assert "progress    40 % halfway" in lines
    assert 'result      {"sent":true}' in lines
    assert lines[-1].endswith("warn  a line\\x1b[31m")


def test_messages_are_cancelled(cli: Run, client: SyncClient, queue: str) -> None:
    ids = [str(client.push(queue, each).id) for each in range(3)]
    client.ack(client.pop(queue))
    done = cli("cancel", *ids)
    assert (done.code, done.out, done.err) == (0, "cancelled 2\n", f"settled, dead or not there: {ids[0]}\n")
    assert client.state(ids[1]) == "cancelled"
    assert cli("cancel", ids[1]).code == 1


@pytest.fixture
def causes(client: SyncClient, queue: str) -> list[int]:
    """Three dead letters: two timeouts of bill, and a missing user of send."""
    ids = []
    for task, kind, error in (
        ("bill", "TimeoutError", "timed out after 3 s"),
        ("bill", "TimeoutError", "timed out after 4 s"),
        ("send", "KeyError", "no user 5"),
    ):
        ids.append(client.push(queue, error, max_attempts=1, task=task).id)
        client.nack(client.pop(queue), error=error, error_type=kind)
    return ids


def test_dead_letters_are_counted_by_cause(cli: Run, queue: str, causes: list[int]) -> None:
    head, first, second = cli("dead", "groups", queue).rows
    assert head == ["COUNT", "TASK", "TYPE", "ERROR", "FIRST", "LAST", "EXAMPLE"]
    assert " ".join(first).startswith("2 bill TimeoutError timed out after * s ")
    assert " ".join(second).startswith("1 send KeyError no user * ")
    assert second[-1] == str(causes[2])
    cut = cli("dead", "groups", queue, "--limit", "1")
    assert cut.err == "and 1 dead letter of other causes; --limit shows more\n"
    told = cli("dead", "groups", queue, "--json").object
    assert (told["total"], told["rest"], told["groups"][0]["count"]) == (3, 0, 2)


def test_no_dead_letters_are_nothing_to_count(cli: Run, client: SyncClient, queue: str) -> None:
    client.push(queue, 1)
    assert cli("dead", "groups", queue).code == 4


def test_dead_letters_are_listed_requeued_and_purged_by_what_they_died_of(
    cli: Run, client: SyncClient, queue: str, causes: list[int]
) -> None:
    def listed(*given: str) -> list[int]:
        return [each["id"] for each in cli("dead", "list", queue, "--json", *given).objects]

    assert listed("--error", "timed out after * s") == causes[:2]
    assert listed("--type", "KeyError") == listed("--task", "send") == causes[2:]
    head, first, *_ = cli("dead", "list", queue).rows
    assert " ".join(head) == "ID STATE PARTITION TASK ENDED FAILURES TYPE ERROR PAYLOAD"
    assert (first[0], first[7]) == (str(causes[0]), "TimeoutError")  # the time has two words
    told = [each["error_type"] for each in cli("dead", "list", queue, "--json").objects]
    assert told == [each.error_type for each in client.dead(queue).messages]
    assert told == ["TimeoutError", "TimeoutError", "KeyError"]
    assert "error type  KeyError" in cli("dead", "show", str(causes[2])).out
    assert cli("dead", "list", queue, "--dead-before", "2020-01-01").code == 4
    dry = cli("dead", "requeue", queue, "--error", "timed out", "--dry-run")
    assert dry.out == f"would have requeued 2 dead letters of {queue}\n"
    assert listed() == causes
    done = cli("dead", "requeue", queue, "--error", "timed out")
    assert (done.out, done.err) == (f"requeued 2 dead letters of {queue}\n", "")
    assert cli("dead", "purge", queue, "--task", "send", "--yes").code == 0
    assert cli("dead", "list", queue).code == 4
    assert cli("dead", "requeue", queue, "--id", str(causes[0]), "--task", "send").code == 1


def test_dead_letters_are_moved_to_another_queue(
    cli: Run, client: SyncClient, queue: str, causes: list[int]
) -> None:
    to = f"{queue}-by-hand"
    missing = cli("dead", "move", queue, "--to", to, "--task", "bill")
    assert (missing.code, missing.err) == (
        1,
        f"forebay: not_found: there is no queue {to}. Say --create to have it made\n",
    )
    done = cli("dead", "move", queue, "--to", to, "--task", "bill", "--create")
    assert (done.out, done.err) == (f"moved to {to}: 2 dead letters of {queue}\n", "")
    assert client.dead(queue).total == 1
    moved = client.pop(to, 9)
    assert moved.payloads == ["timed out after 3 s", "timed out after 4 s"]
    assert cli("dead", "move", queue, "--to", to, "--task", "none").code == 4


def test_a_requeue_and_its_dry_run_say_what_stays_because_a_dependency_is_gone(
    cli: Run, client: SyncClient, queue: str
) -> None:
    child = client.push(f"{queue}-children", 1, max_attempts=1).id
    client.push(queue, 2, depends_on=[child], task="sum")
    client.nack(client.pop(f"{queue}-children"), error="ill")
    client.purge_dead(f"{queue}-children")
    client.push(queue, 3, max_attempts=1, task="sum")
    client.nack(client.pop(queue), error="ill")
    why = "1 dead letter left: a message they depend on was cancelled or purged, or has expired\n"
    for matching in ((), ("--task", "sum")):
        dry = cli("dead", "requeue", queue, "--dry-run", *matching)
        assert (dry.code, dry.out, dry.err) == (0, f"would have requeued 1 dead letter of {queue}\n", why)
    done = cli("dead", "requeue", queue, "--task", "sum")
    assert (done.code, done.out, done.err) == (0, f"requeued 1 dead letter of {queue}\n", why)
    again = cli("dead", "requeue", queue, "--task", "sum", "--json")
    assert again.code == 4
    assert again.out == '{"count":0,"refused":[],"dry_run":false,"dependents":0,"left":1}\n'


def test_a_parked_message_is_shown_with_what_it_waits_for_the_dead_first(
    cli: Run, client: SyncClient, queue: str
) -> None:
    children = client.push_many(f"{queue}-children", range(23), max_attempts=1).ids
    parent = client.push(queue, "sum", depends_on=[*children], on_failed="wait").id
    client.ack(client.pop(f"{queue}-children"))
    client.nack(client.pop(f"{queue}-children"), error="ill")
    line = next(each for each in cli("message", str(parent)).out.splitlines() if each.startswith("waits for"))
    shown = line.removeprefix("waits for").strip().split(", ")
    assert shown[:2] == [f"{children[1]} (dead)", f"{children[2]} (waiting)"]
    assert (len(shown), shown[-1]) == (21, "and 2 more")


def test_a_dry_run_counts_all_dead_letters_however_many(cli: Run, client: SyncClient, queue: str) -> None:
    client.configure(queue, max_attempts=1)
    for at in range(5):
        client.push_many(queue, [New(number, {"task": f"t{number % 2}"}) for number in range(500)])
        client.nack(client.pop(queue, 500), error=f"ill {at}")
    for action in ("requeue", "purge"):
        dry = cli("dead", action, queue, "--dry-run")
        assert dry.out.endswith(f"d 2,500 dead letters of {queue}\n")
    assert client.dead(queue).total == 2_500


def test_dead_letters_that_others_depend_on_are_not_moved(
    cli: Run, client: SyncClient, queue: str, causes: list[int]
) -> None:
    child = client.push(queue, 1, max_attempts=1).id
    client.push(f"{queue}-parents", 2, depends_on=[child])
    client.nack(client.pop(queue), error="ill")
    to = f"{queue}-by-hand"
    dry = cli("dead", "move", queue, "--to", to, "--create", "--dry-run", "--json")
    assert dry.object == {"count": 3, "refused": [], "dry_run": True, "kept": 1}
    done = cli("dead", "move", queue, "--to", to, "--create")
    assert done.out == f"moved to {to}: 3 dead letters of {queue}\n"
    assert done.err == (
        f"not moved: 1 dead letter with dependencies, depended on, damaged, or not taken by {to}; "
        "requeue or purge them\n"
    )
    assert client.dead(queue).total == 1


def test_messages_say_which_task_they_are_of_and_who_holds_them_where_that_is_so(
    cli: Run, client: SyncClient, queue: str
) -> None:
    client.push(queue, {"task": "send", "args": []}, task="send")
    client.push(queue, 2)
    client.pop(queue, worker="mailer-1")
    head, first, second = cli("messages", queue).rows
    assert head[3:5] == ["TASK", "HOLDER"]
    assert (first[3:5], second[3:5]) == (["send", "mailer-1"], ["-", "-"])
    assert [each["task"] for each in cli("messages", queue, "--json").objects] == ["send", None]
    client.drain(queue)
    client.push(queue, 3)
    assert not {"TASK", "HOLDER"} & set(cli("messages", queue, "--state", "waiting").rows[0])

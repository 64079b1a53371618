"""forebay push."""

from pathlib import Path

import pytest

from forebay.client.sync.client import SyncClient
from tests.cli.running import Run, Terminal
from tests.serving import Server


def payloads(client: SyncClient, queue: str) -> list[object]:
    return client.pop(queue, 100).payloads


def test_push_of_one(cli: Run, client: SyncClient, queue: str) -> None:
    done = cli("push", queue, '{"to": "ada"}')
    assert (done.code, done.err) == (0, "")
    (message,) = client.pop(queue)
    assert done.out == f"pushed 1 to {queue}, first id {message.id}\n"
    assert message.payload == {"to": "ada"}


def test_push_of_several_keeps_their_order(cli: Run, client: SyncClient, queue: str) -> None:
    pushed = cli("push", queue, "1", '"two"', "[3]", "null", "--json", "--partition", "x").object
    batch = client.pop(queue, 10)
    assert pushed == {"first": batch[0].id, "count": 4, "durability": "fsync"}
    assert batch.payloads == [1, "two", [3], None]
    assert {message.partition for message in batch} == {"x"}


def test_push_reads_lines_from_standard_input_and_passes_blank_ones(
    cli: Run, client: SyncClient, queue: str
) -> None:
    done = cli("push", queue, "-", stdin='{"n": 1}\n\n   \n{"n": 2}\r\n"ä"'.encode())
    assert done.out.startswith(f"pushed 3 to {queue}, ")
    assert payloads(client, queue) == [{"n": 1}, {"n": 2}, "ä"]


def test_push_reads_lines_from_a_file(cli: Run, client: SyncClient, queue: str, tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('1\n{"n": 2}\n')
    assert cli("push", queue, "--file", str(file), "--json").object["count"] == 2
    assert payloads(client, queue) == [1, {"n": 2}]


def test_many_lines_are_pushed_in_batches_of_ten_thousand(cli: Run, client: SyncClient, queue: str) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20_001))
    done = cli("push", queue, "-", "--json", "--idempotency-key", "once", stdin=lines)
    assert [each["count"] for each in done.objects] == [10_000, 10_000, 1]
    again = cli("push", queue, "-", "--json", "--idempotency-key", "once", stdin=lines)
    assert [each["first"] for each in again.objects] == [each["first"] for each in done.objects]
    assert client.offsets(queue)["default"].end == 20_001


def test_push_of_no_lines_at_all_has_nothing_to_do(cli: Run, queue: str) -> None:
    done = cli("push", queue, "-", stdin=b"\n\n")
    assert (done.code, done.out, done.err) == (4, "", "nothing to push\n")


@pytest.mark.parametrize(
    ("given", "stdin"), [(["1", "{bad", "3"], b""), (["-"], b"1\n\n{bad\n3\n")], ids=["arguments", "lines"]
)
def test_push_says_which_payload_is_not_json_and_pushes_none(
    given: list[str], stdin: bytes, cli: Run, client: SyncClient, queue: str
) -> None:
    done = cli("push", queue, *given, stdin=stdin)
    assert (done.code, done.out) == (1, "")
    assert done.err == "forebay: payload 2 is not JSON: {bad\n"
    assert not client.pop(queue)


@pytest.mark.parametrize(
    ("line", "problem"),
    [(b'"\xff"', "payload 1 is not UTF-8"), (b"[" * 100_000, "payload 1 is nested too deep")],
    ids=["not UTF-8", "too deep"],
)
def test_push_says_what_is_wrong_with_a_line(line: bytes, problem: str, cli: Run, queue: str) -> None:
    done = cli("push", queue, "-", stdin=line)
    assert (done.code, done.err) == (1, f"forebay: {problem}\n")


def test_push_tells_how_to_quote_a_plain_word(cli: Run, queue: str) -> None:
    done = cli("push", queue, "hello")
    assert done.code == 1
    assert "'\"word\"'" in done.err


def test_a_negative_number_is_a_payload_and_a_word_with_dashes_is_no_option(
    cli: Run, client: SyncClient, queue: str
) -> None:
    assert cli("push", queue, "-5", "-1.5", "--priority", "-3").code == 0
    assert payloads(client, queue) == [-5, -1.5]
    done = cli("push", queue, "1", "--colour=red")
    assert done.code == 1
    assert "no such option '--colour'" in done.err


def test_every_option_of_a_message_is_taken(cli: Run, client: SyncClient, queue: str) -> None:
    given = ["--priority", "7", "--ttl-ms", "60000", "--max-attempts", "9", "--durability", "os"]
    named = ["--tag", "a", "--tag", "b", "--header", "k=v=w", "--header", "x=", "--unique-key", "u"]
    pushed = cli("push", queue, "1", *given, *named, "--json").object
    assert pushed["durability"] == "os"
    seen = client.message(pushed["first"])
    assert (seen.priority, seen.tags, seen.headers, seen.unique_key) == (
        7,
        ("a", "b"),
        {"k": "v=w", "x": ""},
        "u",
    )
    assert client.state(cli("push", queue, "2", "--delay-ms", "60000", "--json").object["first"]) == "delayed"
    lane = cli("push", queue, "3", "--key", "lane", "--json").object
    assert client.message(lane["first"]).partition == "lane"


def test_what_is_known_already_is_told(cli: Run, queue: str) -> None:
    first = cli("push", queue, "1", "--unique-key", "u", "--json").object
    again = cli("push", queue, "2", "3", "--unique-key", "u", "--json").object
    assert (again["ids"], again["duplicates"]) == ([first["first"]] * 2, [0, 1])
    twice = cli("push", queue, "4", "--unique-key", "u").out
    assert twice.startswith("pushed 0 to ")
    assert twice.endswith(" (1 known already)\n")


@pytest.mark.parametrize(
    "given", [[], ["-", "1"], ["1", "--file", __file__], ["1", "--header", "x"], ["1", "--durability", "y"]]
)
def test_push_explains_wrong_usage(given: list[str], cli: Run, queue: str) -> None:
    done = cli("push", queue, *given)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("usage: forebay push ")


def test_what_the_server_refuses_is_shown_with_its_code(cli: Run) -> None:
    done = cli("push", "no spaces", "1")
    assert done.code == 1
    assert done.err.startswith("forebay: invalid: queue must be ")


def test_who_watches_a_long_push_sees_a_bar_and_its_result(
    server: Server, client: SyncClient, queue: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text("1\n" * 30_000)
    with Terminal("push", queue, "--file", str(file), FOREBAY_SERVER=server.tcp) as terminal:
        assert terminal.end() == 0
    assert f"pushing to {queue}" in terminal.shown
    assert terminal.shown.count("pushed 10000 to ") == 3

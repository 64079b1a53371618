"""forebay workers: who works, on what, and since when."""

from forebay.client.sync.client import SyncClient
from tests.cli.running import Run


def tell(client: SyncClient, name: str, queue: str, **fields: object) -> None:
    client.ask("WORKER", name=name, queues=[queue], **fields)


def test_workers_are_listed_as_a_table_and_as_json(cli: Run, client: SyncClient, queue: str) -> None:
    jobs = [{"id": 7, "task": "send", "for_ms": 1_000}, {"id": 1 << 60, "task": "send", "for_ms": 90_000}]
    tell(client, f"{queue}-b", queue, host="web-3", version="1.2", running=jobs, running_count=120)
    tell(client, f"{queue}-a", queue, state="draining")
    first, second = cli("workers", "--queue", queue, "--json").objects
    assert (first["name"], first["state"], first["running"]) == (f"{queue}-a", "draining", [])
    assert [each["id"] for each in second["running"]] == [7, str(1 << 60)]
    shown = cli("workers", "--queue", queue)
    head, *rows = shown.rows
    assert " ".join(head) == "NAME HOST VERSION STATE QUEUES RUNNING TASKS LONGEST SINCE SEEN"
    assert rows[1][:7] == [f"{queue}-b", "web-3", "1.2", "working", queue, "120", "send"]
    assert len(rows[1]) == 11  # since when the longest runs, and when it was last heard of
    assert rows[0][0] == f"{queue}-a"
    tell(client, f"{queue}-a", queue, state="stopped")
    tell(client, f"{queue}-b", queue, host="web-3", state="stopped")
    done = cli("workers", "--queue", queue)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"forebay: not_found: there is no queue {queue}")
    client.push(queue, 1)
    done = cli("workers", "--queue", queue)
    assert (done.code, done.out, done.err) == (4, "", f"no workers on {queue}\n")


def test_a_leased_message_is_shown_with_its_holder(cli: Run, client: SyncClient, queue: str) -> None:
    id = client.push(queue, 1).id
    tell(client, f"{queue}-w", queue)
    batch = client.pop(queue, worker=f"{queue}-w")
    shown = cli("message", str(id), "--json").object
    assert shown["holder"] == f"{queue}-w"
    assert shown["leased_at"] < shown["lease_until"]
    told = {line.split("  ")[0]: line for line in cli("message", str(id)).out.splitlines()}
    assert f"{queue}-w" in told["holder"]
    assert "leased until" in told
    client.ack(batch)
    tell(client, f"{queue}-w", queue, state="stopped")
    assert cli("message", str(id), "--json").object["holder"] is None

"""flashQ's webhooks: posted one event at a time in flashQ's form, and taken from others."""

import hashlib
import hmac
import json
from collections.abc import Iterator

import pytest

from tests.server.flashq_http.talking import Door
from tests.server.http.test_webhooks import Endpoint

SECRET = "a secret"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint()
    yield made
    made.close()


def signed(body: bytes) -> str:
    return hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()


def test_events_are_posted_one_by_one_and_signed(door: Door, queue: str, endpoint: Endpoint) -> None:
    body = {"url": endpoint.url, "events": ["*"], "queue": queue, "secret": SECRET}
    name = door.data("POST", "/webhooks", body)
    assert isinstance(name, str)
    first, second = door.data("POST", f"/queues/{queue}/jobs/batch", {"jobs": [{"data": 1}, {"data": [2]}]})
    found = [endpoint.next() for _ in range(2)]
    for posted in found:
        assert posted.headers["X-FlashQ-Signature"] == signed(posted.body)
        assert posted.headers["Content-Type"] == "application/json"
    told = [json.loads(each.body) for each in found]
    assert [(each["event"], each["event_type"]) for each in told] == [("job:pushed", "pushed")] * 2
    assert [(each["job_id"], each["data"], each["error"]) for each in told] == [
        (first, 1, None),
        (second, [2], None),
    ]
    door.pull_job(queue)
    door.data("POST", f"/jobs/{first}/progress", {"progress": 30})
    progress = json.loads(endpoint.next().body)
    assert (progress["event"], progress["job_id"], progress["progress"]) == ("job:progress", first, 30)
    door.data("POST", f"/jobs/{first}/ack", {"result": "done"})
    completed = json.loads(endpoint.next().body)
    assert (completed["event_type"], completed["data"], completed["queue"]) == ("completed", "done", queue)
    assert door.data("DELETE", f"/webhooks/{name}") is True
    assert door.data("DELETE", f"/webhooks/{name}") is False


def test_only_the_events_asked_for_are_posted(door: Door, queue: str, endpoint: Endpoint) -> None:
    body = {"url": endpoint.url, "events": ["job.failed"], "queue": queue}
    name = door.data("POST", "/webhooks", body)
    job = door.push_job(queue, 1, max_attempts=1)
    door.pull_job(queue)
    door.data("POST", f"/jobs/{job}/fail", {"error": "broken"})
    told = json.loads(endpoint.next().body)
    assert (told["event"], told["job_id"], told["error"]) == ("job:failed", job, "broken")
    (listed,) = (each for each in door.data("GET", "/webhooks") if each["id"] == name)
    assert (listed["url"], listed["events"], listed["queue"]) == (endpoint.url, ["failed"], queue)
    assert listed["secret"] is None
    door.data("DELETE", f"/webhooks/{name}")


def test_a_request_of_another_system_becomes_a_job(door: Door, queue: str) -> None:
    job = door.data("POST", f"/webhooks/incoming/{queue}", {"any": "thing"})
    assert (job["queue"], job["data"]) == (queue, {"any": "thing"})
    assert door.pull_job(queue)["data"] == {"any": "thing"}

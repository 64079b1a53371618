"""Everything that flashQ's own SDKs were seen to say to flashQ, said to the door."""

import copy
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.server.flashq.comparing import differences
from tests.server.flashq.scenes import SCENES, Scene
from tests.server.flashq.serving import Talk

EXCHANGES = [
    json.loads(line) for line in (Path(__file__).parent / "exchanges.jsonl").read_text().splitlines()
]
LOOSE = {
    "LISTQUEUES": {"name"},
    "METRICS": {"total_pushed", "total_completed", "total_failed", "avg_latency_ms", "jobs_per_second"},
    "PUSH": {"id"},
    "PUSHB": {"ids"},
    "DLQ": {"started_at", "last_heartbeat"},
}
"""Of these only the type is fixed. A dead letter does not say any more when it was last begun."""
JOB = next(
    each["reply"]["job"] for each in EXCHANGES if each["request"]["cmd"] == "PULL" and each["reply"]["job"]
)


def expected(scene: Scene) -> Any:
    """The recorded answer, with the names and ids of now."""

    def now(value: Any, name: str = "") -> Any:
        if isinstance(value, dict) and name not in ("data", "result"):
            return {key: now(inner, key) for key, inner in value.items()}
        if isinstance(value, list) and name != "data":
            return [now(each, name) for each in value]
        if name == "queue":
            return scene.queue
        if name == "id":
            return scene.ids.get(value, value)
        if name == "error":
            return re.sub(
                r"(?<=[Jj]ob )\d+", lambda found: str(scene.ids.get(int(found[0]), found[0])), value
            )
        return value

    return now(scene.reply)


@pytest.mark.parametrize(
    "number", range(len(EXCHANGES)), ids=lambda at: f"{at}-{EXCHANGES[at]['request']['cmd']}"
)
def test_an_exchange_of_flashqs_sdks_is_answered_as_flashq_answered_it(talk: Talk, number: int) -> None:
    exchange = copy.deepcopy(EXCHANGES[number])
    scene = Scene(talk, f"Q{number}", exchange["request"], exchange["reply"])
    SCENES[scene.cmd](scene)
    talk.send(scene.request)
    got = talk.receive()
    wanted = expected(scene)
    if scene.cmd == "GETJOBS":  # the recording has the first jobs of a longer list
        assert len(got["jobs"]) == wanted["total"]
        got["jobs"] = got["jobs"][: len(wanted["jobs"])]
    loose = frozenset(LOOSE.get(scene.cmd, ()))
    assert not list(differences(wanted, got, loose))
    if scene.cmd == "PUSHB":
        assert len(got["ids"]) == len(scene.request["jobs"])
        assert all(type(each) is int for each in got["ids"])
    for job in [got.get("job"), *got.get("jobs", [])]:
        assert job is None or [each for each in job if each != "state"] == list(JOB)


def test_every_recorded_command_has_a_scene() -> None:
    assert {each["request"]["cmd"] for each in EXCHANGES} == SCENES.keys()


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"id": "1"}, "a number as text"),
        ({"priority": 0.0}, "a float for an integer"),
        ({"lifo": 0}, "a number for a truth"),
        ({"unique_key": ""}, "a text for null"),
        ({"created_at": 0}, "no time"),
        ({"completed_at": 1_794_921_181_319}, "a time where there was none"),
        ({"created_at": 5}, "a time of another century"),
        ({"tags": ["a"]}, "one more in a list"),
        ({"data": {}}, "another payload"),
        ({"more": None}, "one more field"),
    ],
)
def test_what_differs_is_seen(change: dict[str, Any], what: str) -> None:
    assert list(differences({"job": JOB}, {"job": JOB})) == []
    assert list(differences({"job": JOB}, {"job": JOB | change})), what


@pytest.mark.parametrize("name", JOB)
def test_a_missing_field_is_seen(name: str) -> None:
    less = {key: value for key, value in JOB.items() if key != name}
    assert list(differences({"job": JOB}, {"job": less})) == [f".job.{name}: is missing"]

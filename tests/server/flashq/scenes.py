"""What must have happened before each recorded command, so that it gets the recorded answer."""

from collections.abc import Callable
from typing import Any

from tests.server.flashq.serving import Talk
from tests.serving import Reply, Request

UNKNOWN_JOB = 999_999_999


class Scene:
    """One recorded exchange, about to be played again."""

    def __init__(self, talk: Talk, queue: str, request: Request, reply: Reply) -> None:
        self.talk = talk
        self.queue = queue
        self.request = dict(request)
        self.reply = dict(reply)
        self.ids: dict[int, Any] = {}
        """Ids of jobs now, by their recorded ids."""
        if "queue" in request:
            self.request["queue"] = queue

    @property
    def cmd(self) -> str:
        cmd: str = self.request["cmd"]
        return cmd

    def about(self, job: Any) -> Any:
        """Have the command be about a job."""
        self.ids[self.request["id"]] = job
        self.request["id"] = job
        return job

    def push(self, **options: Any) -> Any:
        return self.talk.push(self.queue, {"data": 1}, **options)

    def active(self, **options: Any) -> Any:
        job = self.push(**options)
        assert self.talk.pull(self.queue)["id"] == job
        return job

    def dead(self, attempts: int = 1, error: str = "Fail 1", **options: Any) -> Any:
        """A dead letter; with no attempts it was discarded."""
        job = self.push(**{"max_attempts": attempts or None, **options})
        for _ in range(attempts):
            self.talk.pull(self.queue)
            self.talk.do("FAIL", id=job, error=error)
        if not attempts:
            self.talk.do("DISCARD", id=job)
        return job

    def remake(self, recorded: Reply) -> Any:
        """A job as it was pushed for the recording."""
        delay = 60_000 if recorded.get("state") == "delayed" else None
        names = ("priority", "lifo", "tags", "max_attempts", "backoff")
        options = {name: recorded[name] for name in names if recorded[name]}
        job = self.talk.push(
            self.queue, recorded["data"], delay=delay, job_id=recorded["custom_id"], **options
        )
        self.ids[recorded["id"]] = job
        return job


def _active(scene: Scene) -> None:
    job = scene.about(scene.active())
    if not scene.reply["ok"]:
        scene.talk.do("ACK", id=job)


def _waiting(scene: Scene) -> None:
    if scene.request["id"] != UNKNOWN_JOB:
        scene.about(scene.push())


def _ack_batch(scene: Scene) -> None:
    jobs = [scene.active() for _ in scene.request["ids"]]
    scene.request["ids"] = jobs
    scene.reply["ids"] = [len(jobs)]  # the recording has the first ids of a longer list


def _nothing(scene: Scene) -> None:
    pass


def _clean(scene: Scene) -> None:
    count = scene.reply["count"]
    scene.talk.do("PUSHB", queue=scene.queue, jobs=[{"data": each} for each in range(count)])
    if scene.request["state"] == "completed":
        pulled = scene.talk.do("PULLB", queue=scene.queue, count=count, timeout=0)["jobs"]
        scene.talk.do("ACKB", ids=[each["id"] for each in pulled])


def _many(scene: Scene) -> None:
    jobs = [{"data": each} for each in range(scene.reply["count"])]
    scene.talk.do("PUSHB", queue=scene.queue, jobs=jobs)


def _cron_list(scene: Scene) -> None:
    for each in scene.reply["crons"]:
        fields = {name: each[name] for name in ("name", "data", "schedule", "repeat_every", "limit")}
        scene.talk.do("CRON", queue=scene.queue, **fields)


def _cron_delete(scene: Scene) -> None:
    if scene.reply["ok"]:
        scene.talk.do("CRON", name=scene.request["name"], queue=scene.queue, repeat_every=60_000)


def _dead_letters(scene: Scene) -> None:
    for each in scene.reply["jobs"]:
        job = scene.remake(each)
        for _ in range(each["attempts"]):
            scene.talk.pull(scene.queue)
            scene.talk.do("FAIL", id=job, error=each["progress_msg"] or "Intentional failure")
        if not each["attempts"]:
            scene.talk.do("DISCARD", id=job)


def _get_job(scene: Scene) -> None:
    if scene.reply["job"] is not None:
        scene.about(scene.remake(scene.reply["job"]))


def _by_custom_id(scene: Scene) -> None:
    if scene.reply["job"] is not None:
        scene.remake(scene.reply["job"])


def _get_jobs(scene: Scene) -> None:
    """The newest are recorded, and how many there were in all."""
    recorded = scene.reply["jobs"]
    for _ in range(scene.reply["total"] - len(recorded)):
        scene.push()
    for each in reversed(recorded):
        scene.remake(each)


def _jobs_batch(scene: Scene) -> None:
    scene.request["ids"] = [scene.remake(each) for each in scene.reply["jobs"]]


def _counts(scene: Scene) -> None:
    for _ in range(scene.reply["waiting"]):
        scene.push()
    for _ in range(scene.reply["delayed"]):
        scene.push(delay=60_000)


def _logs(scene: Scene) -> None:
    job = scene.about(scene.push())
    for each in scene.reply["logs"]:
        scene.talk.do("LOG", id=job, message=each["message"], level=each["level"])


def _progress_told(scene: Scene) -> None:
    told = scene.reply["progress"]
    job = scene.about(scene.active())
    scene.talk.do("PROGRESS", id=job, progress=told["progress"], message=told["message"])


def _result(scene: Scene) -> None:
    if not scene.reply["ok"]:
        scene.about(scene.active())
        return
    job = scene.about(scene.active())
    scene.talk.do("ACK", id=job, result=scene.reply["result"])


def _delayed(scene: Scene) -> None:
    scene.about(scene.push(delay=60_000))


def _pull(scene: Scene) -> None:
    if scene.reply["job"] is None:
        scene.request["timeout"] = 1  # nothing comes, however long it is waited for
    else:
        scene.remake(scene.reply["job"])


def _pull_batch(scene: Scene) -> None:
    if not scene.reply["jobs"]:
        scene.request["timeout"] = 1
    for each in scene.reply["jobs"]:
        scene.remake(each)


def _purge(scene: Scene) -> None:
    for _ in range(scene.reply["count"]):
        scene.dead()


def _retry(scene: Scene) -> None:
    job = scene.dead()
    if "id" in scene.request:
        scene.about(job)


def _one_waits(scene: Scene) -> None:
    scene.push()


SCENES: dict[str, Callable[[Scene], None]] = {
    "ACK": _active,
    "ACKB": _ack_batch,
    "AUTH": _nothing,
    "CANCEL": _waiting,
    "CHANGEPRIORITY": _waiting,
    "CLEAN": _clean,
    "CLEARCONCURRENCY": _nothing,
    "COUNT": _many,
    "CRON": _nothing,
    "CRONDELETE": _cron_delete,
    "CRONLIST": _cron_list,
    "DISCARD": _waiting,
    "DLQ": _dead_letters,
    "DRAIN": _many,
    "FAIL": _active,
    "GETJOB": _get_job,
    "GETJOBBYCUSTOMID": _by_custom_id,
    "GETJOBCOUNTS": _counts,
    "GETJOBS": _get_jobs,
    "GETJOBSBATCH": _jobs_batch,
    "GETLOGS": _logs,
    "GETPROGRESS": _progress_told,
    "GETRESULT": _result,
    "GETSTATE": _delayed,
    "HEARTBEAT": _active,
    "ISPAUSED": _nothing,
    "LISTQUEUES": _one_waits,
    "LOG": _waiting,
    "METRICS": _nothing,
    "MOVETODELAYED": _active,
    "OBLITERATE": _nothing,
    "PARTIAL": _active,
    "PAUSE": _nothing,
    "PROGRESS": _active,
    "PROMOTE": _delayed,
    "PULL": _pull,
    "PULLB": _pull_batch,
    "PURGEDLQ": _purge,
    "PUSH": _nothing,
    "PUSHB": _nothing,
    "RATELIMIT": _nothing,
    "RATELIMITCLEAR": _nothing,
    "RESUME": _nothing,
    "RETRYDLQ": _retry,
    "SETCONCURRENCY": _nothing,
    "STATS": _nothing,
    "UPDATEJOB": _waiting,
    "WAITJOB": _result,
}

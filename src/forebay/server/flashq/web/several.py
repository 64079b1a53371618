"""Routes that run more than one command."""

import msgspec
from msgspec import Raw

from forebay.server.flashq.web.answers import FALSE, NULL
from forebay.server.flashq.web.calls import ALL, Call
from forebay.server.flashq.web.commands import Fields, Refused

_encode = msgspec.json.Encoder().encode
_list = msgspec.json.Decoder(list[Fields]).decode
_fields = msgspec.json.Decoder(Fields).decode
_int = msgspec.json.Decoder(int).decode


async def push(call: Call) -> Raw:
    """Push a job, and show it as it is kept."""
    fields = await call.of_body(ALL)
    fields.pop("reqId", None)
    return await pushed(call, fields)


async def pushed(call: Call, fields: Fields) -> Raw:
    answer = await call.ask("PUSH", {**fields, **call.of_path()})
    job = (await call.ask("GETJOB", {"id": answer["id"]}))["job"]
    if bytes(job) != b"null":
        return job
    # It may be done and removed by now.
    return Raw(_encode({"id": answer["id"], "queue": call.path["queue"]}))


async def show_job(call: Call) -> Raw:
    """Show a job with its state and result: its fields beside these, as flashQ does, and under ``job``, where
    its clients look."""
    found = await call.ask("GETJOB", call.of_path())
    job, state = found["job"], found["state"]
    fields = _fields(job) if bytes(job) != b"null" else {}
    result = NULL
    if fields and bytes(state) == b'"completed"':
        result = (await call.ask("GETRESULT", call.of_path()))["result"]
    return Raw(_encode({**fields, "job": job, "state": state, "result": result}))


async def delete_cron(call: Call) -> Raw:
    """Delete a cron; show whether there was one."""
    try:
        await call.ask("CRONDELETE", call.of_path())
    except Refused as error:
        if error.status != 404:
            raise
        return FALSE
    return Raw(b"true")


async def clear_queues(call: Call) -> Raw:
    return await _clear(call, "DRAIN", {})


async def clear_dead(call: Call) -> Raw:
    return await _clear(call, "PURGEDLQ", {})


async def clear_completed(call: Call) -> Raw:
    return await _clear(call, "CLEAN", {"state": Raw(b'"completed"'), "grace": Raw(b"0")})


async def _clear(call: Call, cmd: str, fields: Fields) -> Raw:
    """Run a command for every queue; show how many jobs it removed in all."""
    removed = 0
    for queue in _list((await call.ask("LISTQUEUES"))["queues"]):
        answer = await call.ask(cmd, {**fields, "queue": queue["name"]})
        removed += _int(answer["count"])
    return Raw(_encode(removed))

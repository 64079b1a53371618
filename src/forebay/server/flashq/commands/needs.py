"""What each of flashQ's commands needs: one of these roles, as the native operations do."""

from forebay.core.api.principals import ANY, OWNER, POP, PUSH, READ, WRITE

_BY_ROLE: dict[str | tuple[str, ...], str] = {
    ANY: "AUTH UNSUBSCRIBE",
    READ: """
        GETSTATE GETJOB GETJOBBYCUSTOMID GETJOBSBATCH GETJOBS GETPROGRESS GETLOGS DLQ ISPAUSED GETJOBCOUNTS
        COUNT LISTQUEUES STATS METRICS CRONLIST KVGET KVMGET KVEXISTS KVTTL KVKEYS SUBSCRIBE
    """,
    (READ, POP): "GETRESULT WAITJOB GETCHILDREN",
    PUSH: "PUSH PUSHB FLOW",
    POP: "PULL PULLB ACK ACKB FAIL HEARTBEAT PROGRESS LOG PARTIAL",
    WRITE: """
        CANCEL PROMOTE MOVETODELAYED CHANGEPRIORITY DISCARD UPDATEJOB UPDATE RETRYDLQ PURGEDLQ CRON CRONDELETE
        KVSET KVMSET KVDEL KVEXPIRE KVINCR
    """,
    OWNER: "PAUSE RESUME RATELIMIT RATELIMITCLEAR SETCONCURRENCY CLEARCONCURRENCY DRAIN CLEAN OBLITERATE",
}
NEEDS: dict[str, tuple[str, ...]] = {
    name: (role,) if isinstance(role, str) else role
    for role, names in _BY_ROLE.items()
    for name in names.split()
}
"""By the name of a command: the roles, one of which is enough."""

"""The union of all TCP commands. Each class maps to a command of the core and renders its reply."""

from forebay.server.flashq.crons import Cron, CronDelete, CronList
from forebay.server.flashq.events import Events
from forebay.server.flashq.flows import Flow, Tx
from forebay.server.flashq.limits import (
    ClearConcurrency,
    Limit,
    LimitDelete,
    LimitList,
    RateLimit,
    RateLimitClear,
    SetConcurrency,
)
from forebay.server.flashq.messages import (
    Browse,
    BrowseJobs,
    Cancel,
    ChangePriority,
    DeadLetters,
    Discard,
    GetChildren,
    GetJob,
    GetJobByCustomId,
    GetJobs,
    GetState,
    MoveToDelayed,
    Promote,
    PurgeDead,
    Read,
    RetryDead,
    UpdateAlias,
    UpdateJob,
)
from forebay.server.flashq.notes import GetLogs, GetProgress, GetResult, Log, Partial, Progress, WaitJob
from forebay.server.flashq.pop import Ack, AckBatch, Extend, Fail, Heartbeat, Pull, PullBatch, Release
from forebay.server.flashq.push import Push, PushBatch
from forebay.server.flashq.queues import (
    Backup,
    Clean,
    Count,
    Delete,
    DeleteGroup,
    Drain,
    GetJobCounts,
    Hold,
    IsPaused,
    ListQueues,
    Obliterate,
    Offsets,
    Pause,
    Purge,
    PutGroup,
    Queue,
    Resume,
    Seek,
    Stats,
)
from forebay.server.flashq.stages import Adopt, Stage, Unstage
from forebay.server.flashq.values import (
    KvAtomic,
    KvDelete,
    KvExists,
    KvExpire,
    KvGet,
    KvGetMany,
    KvIncrement,
    KvKeys,
    KvList,
    KvSet,
    KvSetMany,
    KvTtl,
    KvWatch,
)

AnyRequest = (
    Push
    | PushBatch
    | Pull
    | PullBatch
    | Ack
    | AckBatch
    | Fail
    | Release
    | Extend
    | Heartbeat
    | Cancel
    | Promote
    | MoveToDelayed
    | ChangePriority
    | UpdateJob
    | UpdateAlias
    | Discard
    | DeadLetters
    | RetryDead
    | PurgeDead
    | Pause
    | Resume
    | IsPaused
    | GetJobCounts
    | Count
    | Read
    | Offsets
    | Queue
    | ListQueues
    | GetState
    | GetJob
    | GetJobs
    | BrowseJobs
    | Browse
    | Seek
    | Drain
    | Clean
    | Purge
    | Delete
    | Obliterate
    | PutGroup
    | DeleteGroup
    | GetResult
    | WaitJob
    | Progress
    | GetProgress
    | Log
    | GetLogs
    | Partial
    | Stats
    | Backup
    | Hold
    | Flow
    | Tx
    | GetChildren
    | GetJobByCustomId
    | Cron
    | CronDelete
    | CronList
    | RateLimit
    | RateLimitClear
    | SetConcurrency
    | ClearConcurrency
    | Limit
    | LimitDelete
    | LimitList
    | KvSet
    | KvSetMany
    | KvGet
    | KvGetMany
    | KvDelete
    | KvExists
    | KvExpire
    | KvTtl
    | KvKeys
    | KvIncrement
    | KvList
    | KvAtomic
    | KvWatch
    | Stage
    | Adopt
    | Unstage
    | Events
)

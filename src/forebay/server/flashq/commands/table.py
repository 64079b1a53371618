"""The union of all commands of flashQ's door, and their names."""

from typing import Any, get_args

from forebay.server.flashq.commands import (
    crons,
    dead_letters,
    jobs,
    notes,
    pull,
    push,
    queues,
    session,
    values,
)

AnyCommand = (
    push.Push
    | push.PushBatch
    | push.Flow
    | pull.Pull
    | pull.PullBatch
    | pull.Ack
    | pull.AckBatch
    | pull.Fail
    | pull.Heartbeat
    | jobs.Cancel
    | jobs.Promote
    | jobs.MoveToDelayed
    | jobs.ChangePriority
    | jobs.Discard
    | jobs.UpdateJob
    | jobs.Update
    | jobs.GetState
    | jobs.GetJob
    | jobs.GetJobByCustomId
    | jobs.GetJobsBatch
    | jobs.GetJobs
    | jobs.GetChildren
    | dead_letters.DeadLetters
    | dead_letters.RetryDead
    | dead_letters.PurgeDead
    | notes.GetResult
    | notes.WaitJob
    | notes.Progress
    | notes.GetProgress
    | notes.Log
    | notes.GetLogs
    | notes.Partial
    | queues.Pause
    | queues.Resume
    | queues.IsPaused
    | queues.RateLimit
    | queues.RateLimitClear
    | queues.SetConcurrency
    | queues.ClearConcurrency
    | queues.GetJobCounts
    | queues.Count
    | queues.Drain
    | queues.Clean
    | queues.Obliterate
    | queues.ListQueues
    | queues.Stats
    | queues.Metrics
    | crons.Cron
    | crons.CronDelete
    | crons.CronList
    | values.KvSet
    | values.KvSetMany
    | values.KvDelete
    | values.KvExpire
    | values.KvIncrement
    | values.KvGet
    | values.KvGetMany
    | values.KvExists
    | values.KvTtl
    | values.KvKeys
    | session.Auth
    | session.Subscribe
    | session.Unsubscribe
)
COMMANDS: dict[str, Any] = {kind.__struct_config__.tag: kind for kind in get_args(AnyCommand)}
NAMES = frozenset(COMMANDS)

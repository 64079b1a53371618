"""Forebay: a multi-tenant message and job queue."""

__version__ = "0.1.0"

from forebay.client.aio.client import Client
from forebay.client.errors import Disconnected, NotForebay, NotTrusted
from forebay.client.sync.client import SyncClient
from forebay.client.tasks.app import App
from forebay.client.tasks.flow import chain, group
from forebay.client.tasks.task import Failed, GiveUp, Job, NotDone, Retry, RetryLater, Task
from forebay.client.types import Batch, Message, New, Pushed, PushedMany
from forebay.client.worker.current import Run, current
from forebay.client.worker.worker import Worker
from forebay.core.errors import Busy, Conflict, Damaged, Denied, ForebayError, Invalid, NotFound, Unsupported

__all__ = [
    "App",
    "Batch",
    "Busy",
    "Client",
    "Conflict",
    "Damaged",
    "Denied",
    "Disconnected",
    "Failed",
    "GiveUp",
    "Invalid",
    "Job",
    "Message",
    "New",
    "NotDone",
    "NotForebay",
    "NotFound",
    "NotTrusted",
    "ForebayError",
    "Pushed",
    "PushedMany",
    "Retry",
    "RetryLater",
    "Run",
    "SyncClient",
    "Task",
    "Unsupported",
    "Worker",
    "__version__",
    "chain",
    "current",
    "group",
]

"""Penstock: a multi-tenant message and job queue."""

__version__ = "0.1.0"

from penstock.client.aio.client import Client
from penstock.client.apps import App
from penstock.client.errors import Disconnected
from penstock.client.flows import chain, group
from penstock.client.running import Run, current
from penstock.client.shapes import Batch, Message, New, Pushed, PushedMany
from penstock.client.sync.client import SyncClient
from penstock.client.tasks import Failed, GiveUp, Job, NotDone, Retry, RetryLater, Task
from penstock.client.worker import Worker
from penstock.core.errors import (
    Busy,
    Conflict,
    Damaged,
    Denied,
    Invalid,
    NotFound,
    PenstockError,
    Unsupported,
)

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
    "NotFound",
    "PenstockError",
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

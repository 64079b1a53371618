"""Consequences of settled messages: free keys, write keys, notify dependents, in the same commit."""

from forebay.core.jobs import dependencies
from forebay.core.keyvalue import store as kv_store
from forebay.core.links.ties import tied_over, untie
from forebay.core.shard.shard import Shard
from forebay.core.state import Value
from forebay.core.words import DIED, DISCARDED


def settle_consequences(shard: Shard, now: int) -> None:
    """Settle the consequences of all ended messages, and of messages that end by that."""
    while shard.ends:
        ends = shard.ends[:]
        shard.ends.clear()
        for ended in ends:
            partition = ended.partition
            for offset in tied_over(partition, ended.first, ended.end) if partition.ties else ():
                tie = untie(shard, ended.queue, partition, offset)
                if tie.keys and ended.how in (DIED, DISCARDED):
                    left: kv_store.Left = {key: Value(tie.payload, kv_store.UNWRITTEN) for key in tie.keys}
                    kv_store.apply(shard, ended.queue.tenant, left)
            if partition.dependents.size:
                dependencies.notify_dependents(shard, ended, now)

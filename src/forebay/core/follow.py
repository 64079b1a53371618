"""What follows from the end of messages, in the commit in which they end."""

from forebay.core import dependents, values
from forebay.core.domain import Domain
from forebay.core.model import DIED, DISCARDED, Value
from forebay.core.ties import tied_over, untie


def follow(domain: Domain, now: int) -> None:
    """See to everything that ended since this was last called. What that ends is seen to, too."""
    while domain.ends:
        ends = domain.ends[:]
        domain.ends.clear()
        for ended in ends:
            partition = ended.partition
            for offset in tied_over(partition, ended.first, ended.end) if partition.ties else ():
                tie = untie(ended.shard, ended.queue, partition, offset)
                if tie.keys and ended.how in (DIED, DISCARDED):
                    left: values.Left = {key: Value(tie.payload, values.UNWRITTEN) for key in tie.keys}
                    values.apply(domain, ended.queue.tenant, left)
            if partition.dependents.size:
                dependents.tell(domain, ended, now)

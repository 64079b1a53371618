"""Task queues that bench/tasks.py measures, one file each. The contract is in contract.py."""

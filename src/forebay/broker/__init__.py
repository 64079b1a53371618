"""RUNS: the node, its committer, waiters and timers."""

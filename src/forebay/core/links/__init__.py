"""What hangs on single messages: keys they hold, waits, expiry, successors, dedup memory."""

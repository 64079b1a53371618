"""Sorted rows, intervals and timers that know nothing of queues."""

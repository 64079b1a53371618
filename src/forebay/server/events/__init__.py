"""Lifecycle events: live to listeners, and from the log for those who were away."""

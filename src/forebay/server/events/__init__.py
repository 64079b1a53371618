"""Lifecycle events: live to subscribers, and from the log for those that reconnect."""

"""Manage queues: options, groups, seek, clean, delete, named limits."""

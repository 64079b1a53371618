"""Tasks: functions as jobs, their calls and flows."""

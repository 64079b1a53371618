"""flashQ's HTTP door, over a real server."""

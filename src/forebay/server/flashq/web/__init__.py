"""flashQ's HTTP API: its routes lead to the same commands as its TCP protocol."""

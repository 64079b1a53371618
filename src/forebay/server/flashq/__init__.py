"""The TCP protocol: flashQ's commands and names, and Forebay's own where flashQ has none."""

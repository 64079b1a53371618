"""How state is stored: keys, values, commits."""

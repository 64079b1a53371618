"""flashQ's commands: each is a class that is decoded, carried out and answered."""

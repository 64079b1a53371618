"""SPEAKS: bytes to commands and replies to bytes, nothing else."""

"""Every native operation, translated: requests to commands of the core, its replies to answers."""

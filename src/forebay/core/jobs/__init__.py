"""Job features on top of push: unique keys, dependencies, flows, crons."""

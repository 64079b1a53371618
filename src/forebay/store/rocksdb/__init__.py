"""The embedded store: RocksDB inside the process."""

"""How RocksDB is set up."""

from rocksdict import BlockBasedOptions, Cache, Options

NEVER_BYTES = 4 * 1024 * 1024 * 1024
"""Memtable size at which RocksDB would flush by itself: never reached, see ``RocksStore._flush``."""
NEVER_FILES = 1 << 30
CACHE_BYTES = 32 * 1024 * 1024
_CACHE = Cache(CACHE_BYTES)


def record_options(new: bool, log_bytes: int) -> Options:
    """Return the options of the database and of its records."""
    options = _family_options()
    options.create_if_missing(new)
    options.create_missing_column_families(new)
    # RocksDB allocates so much for a new log at once, which a small or nearly full disk does not have.
    options.set_max_total_wal_size(log_bytes)
    options.set_max_background_jobs(4)
    options.set_bytes_per_sync(1024 * 1024)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_stats_dump_period_sec(0)
    return options


def body_options() -> Options:
    """Return the options of the bodies."""
    options = _family_options()
    options.set_enable_blob_files(True)
    options.set_min_blob_size(0)
    options.set_blob_file_size(256 * 1024 * 1024)
    options.set_enable_blob_gc(True)
    return options


def _family_options() -> Options:
    options = Options(raw_mode=True)
    options.set_write_buffer_size(NEVER_BYTES)
    options.set_arena_block_size(1024 * 1024)
    options.set_max_write_buffer_number(3)
    # Full stops only, no slowdown: with ``no_slowdown`` a slowed write is refused just the same.
    options.set_level_zero_slowdown_writes_trigger(64)
    options.set_level_zero_stop_writes_trigger(64)
    table = BlockBasedOptions()
    table.set_block_cache(_CACHE)
    options.set_block_based_table_factory(table)
    return options

"""How RocksDB is set up."""

from pathlib import Path

from rocksdict import BlockBasedOptions, Cache, Options

THRIFTY = Path(__file__).parent / "thrifty"
"""Has a RocksDB options file with what rocksdict has no setters for.

Recovery without a flush: what is in the log stays there, so an open writes some 50 KB, not all of it again.
No allocation ahead, and of RocksDB's log for people only errors.
"""
NEVER_BYTES = 4 * 1024 * 1024 * 1024
"""Memtable size at which RocksDB would flush by itself: never reached, see ``RocksStore._flush``."""
NEVER_FILES = 1 << 30
STOP_FILES = 64
"""Files that were not compacted yet, at which RocksDB takes nothing more."""
CACHE_BYTES = 32 * 1024 * 1024
_CACHE = Cache(CACHE_BYTES)


def record_options(new: bool, log_bytes: int, *, thrifty: bool = False) -> Options:
    """Return the options of the database and of its records."""
    options = Options.load_latest(str(THRIFTY))[0] if thrifty else Options(raw_mode=True)
    _set_family(options)
    options.create_if_missing(new)
    options.create_missing_column_families(new)
    # RocksDB allocates so much for a new log at once, which a small or nearly full disk does not have.
    # A thrifty open allocates nothing ahead, and finds logs that it must not flush by itself.
    options.set_max_total_wal_size(NEVER_BYTES if thrifty else log_bytes)
    # By default 4 MB, which a small disk does not have: it grows by some 100 bytes for each file.
    options.set_manifest_preallocation_size(64 * 1024)
    options.set_max_background_jobs(4)
    options.set_bytes_per_sync(1024 * 1024)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(256 * 1024)
    options.set_stats_dump_period_sec(0)
    return options


def body_options() -> Options:
    """Return the options of the bodies."""
    options = Options(raw_mode=True)
    _set_family(options)
    options.set_enable_blob_files(True)
    options.set_min_blob_size(0)
    options.set_blob_file_size(256 * 1024 * 1024)
    options.set_enable_blob_gc(True)
    return options


def _set_family(options: Options) -> None:
    options.set_write_buffer_size(NEVER_BYTES)
    options.set_arena_block_size(1024 * 1024)
    options.set_max_write_buffer_number(3)
    # Full stops only, no slowdown: with ``no_slowdown`` a slowed write is refused just the same.
    options.set_level_zero_slowdown_writes_trigger(STOP_FILES)
    options.set_level_zero_stop_writes_trigger(STOP_FILES)
    table = BlockBasedOptions()
    table.set_block_cache(_CACHE)
    options.set_block_based_table_factory(table)

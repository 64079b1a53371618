"""The least a source can do: rows from a bare TCP server that has them in memory, as Arrow lays them out.

What a real source reaches of this is what its server, its columns and its promises cost. The server runs as
``python -m bench.spark_toy ROWS PARTITIONS`` and prints its port.
"""

import socket
import struct
import sys
import threading
from collections.abc import Iterator
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition

ASK = struct.Struct("<III")
"""Partition, first row, number of rows."""
AT_ONCE = 65_536


def payload(row: int, partition: int) -> str:
    """A message of 63 bytes, about."""
    noise = row * 2_654_435_761 & 0xFFFFFFFF
    at = 1_700_000_000_000 + row
    return f'{{"o":{row},"p":{partition},"k":"k{row % 1000:03d}","t":{at},"v":"{noise:08x}"}}'


def exactly(connection: socket.socket, count: int) -> bytearray:
    found = bytearray(count)
    view, at = memoryview(found), 0
    while at < count:
        got = connection.recv_into(view[at:])
        if not got:
            raise EOFError
        at += got
    return found


def serve(rows: int, partitions: int) -> None:
    import numpy as np

    columns = []
    for partition in range(partitions):
        texts = [payload(row, partition).encode() for row in range(rows)]
        ends = np.zeros(rows + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, rows), out=ends[1:])
        columns.append((b"".join(texts), ends))

    def answer(connection: socket.socket) -> None:
        try:
            while True:
                partition, first, count = ASK.unpack(exactly(connection, ASK.size))
                blob, ends = columns[partition]
                low, high = int(ends[first]), int(ends[first + count])
                offsets = (ends[first : first + count + 1] - low).astype("<i4").tobytes()
                connection.sendall(struct.pack("<I", high - low) + offsets)
                connection.sendall(memoryview(blob)[low:high])
        except (EOFError, ConnectionError):
            connection.close()

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=answer, args=(connection,), daemon=True).start()


class Part(InputPartition):
    def __init__(self, partition: int, rows: int) -> None:
        super().__init__(None)
        self.partition, self.rows = partition, rows


class Reader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self.options = options

    def partitions(self) -> list[InputPartition]:
        rows = int(self.options["rows"])
        return [Part(each, rows) for each in range(int(self.options["partitions"]))]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        import numpy as np
        import pyarrow as pa

        assert isinstance(partition, Part)
        names = [("partition", pa.int32()), ("offset", pa.int64()), ("value", pa.string())]
        schema = pa.schema(names)
        connection = socket.create_connection(("127.0.0.1", int(self.options["port"])))
        for first in range(0, partition.rows, AT_ONCE):
            count = min(AT_ONCE, partition.rows - first)
            connection.sendall(ASK.pack(partition.partition, first, count))
            (size,) = struct.unpack("<I", exactly(connection, 4))
            offsets, data = exactly(connection, 4 * (count + 1)), exactly(connection, size)
            values = pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(data))
            columns = [
                pa.array(np.full(count, partition.partition, np.int32)),
                pa.array(np.arange(first, first + count, dtype=np.int64)),
                values,
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)
        connection.close()


class Toy(DataSource):
    @classmethod
    def name(cls) -> str:
        return "toy"

    def schema(self) -> str:
        return "partition int, offset bigint, value string"

    def reader(self, schema: Any) -> DataSourceReader:
        return Reader({**self.options})


if __name__ == "__main__":
    serve(int(sys.argv[1]), int(sys.argv[2]))

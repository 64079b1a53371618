"""What docs/SPARK.md shows runs as it is written, and names every option there is."""

import re
from pathlib import Path

import msgspec
import pytest

from penstock.spark.options import COLUMNS, SINK, SOURCE
from penstock.spark.schemas import ABOUT
from tests.serving import Server
from tests.spark.talking import Place

DOCS = Path(__file__).parent.parent.parent / "docs"
PAGE = (DOCS / "SPARK.md").read_text()
PROTOCOL = (DOCS / "PROTOCOL.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_the_examples_run_as_they_are_written(
    place: Place, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 8
    names: dict[str, object] = {"__name__": "docs"}
    for block in BLOCKS:
        local = block.replace("127.0.0.1:6789", server.tcp)
        local = local.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        local = local.replace('"orders.parquet"', f'"{tmp_path}/orders.parquet"')
        exec(compile(local, "docs/SPARK.md", "exec"), names)
    dear = [*place.log("dear-orders", "eu"), *place.log("dear-orders", "us")]
    assert sorted(each["id"] for each in dear) == [n for n in range(3000) if n * 1.5 > 4000]
    assert [each["id"] for each in place.log("orders-copy")] == list(range(3000))


@pytest.mark.parametrize("name", sorted({*SOURCE, *SINK}))
def test_every_option_is_on_the_page(name: str) -> None:
    assert f"`{name}`" in PAGE


@pytest.mark.parametrize("name", [*COLUMNS, *ABOUT])
def test_every_column_is_on_the_page(name: str) -> None:
    assert f"| `{name}` |" in PAGE


def test_the_packed_frames_are_what_a_server_takes_and_answers(server: Server) -> None:
    (block,) = re.findall(r"^```\n(00 00 00 1d +#.*?)^```", PROTOCOL, re.MULTILINE | re.DOTALL)
    asked, answered = (
        bytes.fromhex("".join(line.partition("#")[0] for line in part.splitlines()))
        for part in block.split("\n\n")
    )
    with server.connect() as client:
        client.send_frame(b'{"cmd": "PUSHB", "queue": "tiny", "messages": [1,{"a":2}]}')
        assert client.receive()["ok"]
        client.send(asked)
        found = client._exactly(int.from_bytes(client._exactly(4), "big"))
    shown = msgspec.msgpack.decode(answered[4:])
    assert answered[:4] == len(answered[4:]).to_bytes(4, "big")
    assert shown["runs"][0]["first"] == shown["number"] << 32
    # Each server has its own numbers and times.
    real = msgspec.msgpack.decode(found)
    shown["number"] = real["number"]
    shown["runs"][0] |= {name: real["runs"][0][name] for name in ("first", "created_at")}
    assert msgspec.msgpack.encode(shown) == found
    for line in block.splitlines():
        data, _, told = line.partition("#")
        for text in re.findall(r'"(\w+)"', told.partition("{")[0]):
            assert text.encode() in bytes.fromhex(data)

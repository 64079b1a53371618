"""What docs/SPARK.md shows runs as it is written, and names every option there is."""

import re
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from forebay.core.bounds import KEYED_MAX, STAGED_PARTS_MAX, STAGES_MAX
from forebay.spark.columns import Parser
from forebay.spark.options import COLUMNS, SINK, SOURCE, BadOption, source_options
from forebay.spark.schemas import ABOUT
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
        local = block.replace("127.0.0.1:6780", server.tcp)
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
        client.send_frame(b'{"cmd": "PUSH", "queue": "tiny", "messages": [1,{"a":2}]}')
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


@pytest.mark.parametrize("limit", [STAGES_MAX, STAGED_PARTS_MAX, KEYED_MAX])
def test_the_limits_of_a_write_are_on_both_pages(limit: int) -> None:
    assert f"{limit:,}" in PAGE.split("**Limits of a write**")[1].split("\n- ")[0]
    assert f"{limit:,}" in PROTOCOL.split("### STAGE\n")[1].split("\n### ")[0]


@pytest.mark.parametrize("address", ["tcp://localhost:7000", "tcp://10.0.0.7:7000", "tcp://[::1]:7000"])
def test_an_address_takes_the_forms_the_page_has(address: str) -> None:
    for given in (address, address.removeprefix("tcp://")):
        assert source_options({"queue": "q", "server": given}).server == address.removeprefix("tcp://")
    for wrong in (address.replace("tcp", "http"), address.removesuffix(":7000"), "/run/forebay.sock"):
        with pytest.raises(BadOption, match="tcp://HOST:PORT"):
            source_options({"queue": "q", "server": wrong})


def test_the_variable_of_the_command_line_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_SERVER", "10.0.0.7:7000")
    assert source_options({"queue": "q"}).server == "127.0.0.1:6780"


@pytest.mark.parametrize(
    ("given", "at"),
    [
        ("1970-01-02T00:00:00", 86_400_000),
        ("1970-01-02", 86_400_000),
        ("1970-01-02T00:00:00Z", 86_400_000),
        ("1970-01-02T00:00:00+01:00", 82_800_000),
    ],
)
def test_a_time_without_a_zone_is_utc(given: str, at: int) -> None:
    assert source_options({"queue": "q", "startingOffsets": given}).starting == at
    values, _ = Parser(pa.struct([("at", pa.timestamp("us", "UTC"))])).parse(
        pa.array([f'{{"at":"{given}"}}'])
    )
    assert values[0]["at"].value == at * 1000

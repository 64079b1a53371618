"""Spark shows a token: who asks, for which tenant, over TLS; and the token is shown to nobody else."""

import contextlib
import io
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from forebay.client.access import VARIABLES
from forebay.client.identities import NewToken
from forebay.client.sync.client import SyncClient
from forebay.spark.options import BadOption, sink_options, source_options
from tests.client.certificates import Authority
from tests.client.tls_front import TlsFront
from tests.serving import Server

ADMIN = secrets.token_urlsafe(32)


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    with Server("--admin-token", ADMIN) as running:
        yield running


@pytest.fixture(scope="module")
def acme(closed: Server) -> Iterator[SyncClient]:
    """An admin who acts for the tenant acme."""
    with SyncClient(closed.tcp, token=ADMIN, tenant="acme") as client:
        client.tenants.create("acme")
        client.push_many("orders", [1, 2, 3])
        client.configure("orders.out")
        yield client


@pytest.fixture(scope="module")
def made(acme: SyncClient) -> NewToken:
    return acme.tokens.create("write", queues=["orders*"])


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES.values():
        monkeypatch.delenv(name, raising=False)


def options(address: str, **more: Any) -> dict[str, str]:
    return {"server": f"tcp://{address}", "queue": "orders", **more}


def test_a_table_and_a_sink_act_for_the_tenant_of_the_token(
    spark: SparkSession, closed: Server, acme: SyncClient, made: NewToken
) -> None:
    given = options(closed.tcp, token=made.token)
    rows = spark.read.format("forebay").options(**given).load().select("tenant", "value").collect()
    assert sorted((row.tenant, row.value) for row in rows) == [("acme", "1"), ("acme", "2"), ("acme", "3")]
    frame = spark.createDataFrame([("4",)], "value string")
    frame.write.format("forebay").options(**{**given, "queue": "orders.out"}).mode("append").save()
    assert acme.pop("orders.out", 10)[0].payload == 4


def test_a_stream_acts_for_the_tenant_that_its_options_name(
    spark: SparkSession, closed: Server, acme: SyncClient, tmp_path: Path
) -> None:
    given = options(closed.tcp, token=ADMIN, tenant="acme")
    stream = spark.readStream.format("forebay").options(**given).load().select("value")
    writer = stream.writeStream.format("forebay").options(**{**given, "queue": "orders.copy"})
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert query.exception() is None
    assert sorted(each.payload for each in acme.pop("orders.copy", 10)) == [1, 2, 3]


def test_a_filter_on_the_tenant_knows_whose_queues_these_are(
    spark: SparkSession, closed: Server, acme: SyncClient, made: NewToken
) -> None:
    for name, count in ("acme", 3), ("default", 0):
        given = options(closed.tcp, token=made.token, pushFilters="true")
        table = spark.read.format("forebay").options(**given).load()
        assert len(table.where(table.tenant == name).collect()) == count


def test_a_token_is_shown_in_no_plan_and_no_error(
    spark: SparkSession, closed: Server, acme: SyncClient, made: NewToken, capfd: pytest.CaptureFixture[str]
) -> None:
    hidden = made.token.rpartition("_")[2]
    table = spark.read.format("forebay").options(**options(closed.tcp, token=made.token)).load()
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        for mode in ("extended", "formatted", "cost"):
            table.explain(mode=mode)
        shown.write(f"{table._jdf.queryExecution().toString()} {table}")
    assert "forebay" in shown.getvalue()
    assert hidden not in shown.getvalue()
    denied = options(closed.tcp, token=made.token, queue="other")
    with pytest.raises(Exception, match="is for the queues") as raised:
        spark.read.format("forebay").options(**denied).load().collect()
    with pytest.raises(Exception, match="not, or no longer, good here") as refused:
        spark.read.format("forebay").options(**options(closed.tcp, token=f"fb_{hidden}")).load().collect()
    told = capfd.readouterr()
    assert hidden not in str(raised.value) + str(refused.value) + told.out + told.err


def test_without_a_token_a_query_says_that_one_is_needed(spark: SparkSession, closed: Server) -> None:
    with pytest.raises(Exception, match="Authentication required"):
        spark.read.format("forebay").options(**options(closed.tcp)).load().collect()


def test_a_table_is_read_over_tls(
    spark: SparkSession, closed: Server, acme: SyncClient, made: NewToken, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    with TlsFront(closed.tcp, authority.served("127.0.0.1")) as front:
        given = {"server": front.address, "queue": "orders", "token": made.token}
        trusted = spark.read.format("forebay").options(**given, ca=str(authority.path)).load()
        assert len(trusted.collect()) == 3
        with pytest.raises(Exception, match="is not trusted"):
            spark.read.format("forebay").options(**given).load().collect()


def test_options_come_before_the_environment_and_hide_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FOREBAY_TOKEN", "of the environment".replace(" ", "-"))
    monkeypatch.setenv("FOREBAY_TENANT", "acme")
    found = source_options({"queue": "orders"})
    assert (found.access.token, found.access.tenant) == ("of-the-environment", "acme")
    assert "of-the-environment" not in repr(found)
    sink = sink_options({"queue": "orders", "token": "given"}, streaming=False)
    assert sink.access.token == "given"
    assert "given" not in repr(sink)
    with pytest.raises(BadOption, match='option "ca" of format "forebay" must be left out'):
        source_options({"queue": "orders", "ca": "ca.pem"})
    kept = source_options({"queue": "orders", "server": "tls://queue.example:6780", "ca": "ca.pem"})
    assert (kept.server, kept.access.ca) == ("tls://queue.example:6780", "ca.pem")

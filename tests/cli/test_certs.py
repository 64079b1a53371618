"""forebay certs, and a server that is started with what it made."""

import json
import os
import re
import shlex
import signal
import ssl
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cli.running import PATIENCE_S, Run, command, environment, run
from tests.serving import Raw
from tests.tls import Authority, Secured

OPERATIONS = (Path(__file__).parents[2] / "docs" / "OPERATIONS.md").read_text()


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def names_in(certificate: Path) -> list[tuple[str, str]]:
    """The alternative names of a certificate."""
    from cryptography import x509

    found = x509.load_pem_x509_certificate(certificate.read_bytes())
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [(type(each).__name__, str(each.value)) for each in names]


def test_certs_makes_a_ca_and_a_server_that_its_own_machine_trusts(cli: Run, tmp_path: Path) -> None:
    made = cli("certs", str(tmp_path / "tls"), "--json").objects
    assert [(each["what"], each["names"], each["new"]) for each in made] == [
        ("ca", [], True),
        ("server", ["localhost", "127.0.0.1", "::1"], True),
    ]
    assert sorted(each.name for each in (tmp_path / "tls").iterdir()) == [
        "ca-key.pem",
        "ca.pem",
        "server-key.pem",
        "server.pem",
    ]
    for each in made:
        assert mode(Path(each["key"])) == 0o600
        assert datetime.fromisoformat(each["good_until"]) > datetime.now(UTC)


def test_certs_names_servers_and_clients_as_it_is_told(cli: Run, tmp_path: Path) -> None:
    clients = ("billing.example", "spiffe://corp.example/acme/worker", "boss@example.com")
    told = [word for each in clients for word in ("--client", each)]
    assert cli("certs", str(tmp_path), "--host", "queue.example", "--host", "10.0.0.7", *told).code == 0
    assert names_in(tmp_path / "server.pem") == [("DNSName", "queue.example"), ("IPAddress", "10.0.0.7")]
    assert names_in(tmp_path / "client-billing.example.pem") == [("DNSName", "billing.example")]
    worker = "client-spiffe-corp.example-acme-worker.pem"
    assert names_in(tmp_path / worker) == [("UniformResourceIdentifier", clients[1])]
    assert names_in(tmp_path / "client-boss@example.com.pem") == [("RFC822Name", "boss@example.com")]


def test_certs_overwrites_nothing_unless_it_is_told_to(cli: Run, tmp_path: Path) -> None:
    assert cli("certs", str(tmp_path), "--client", "a.example").code == 0
    before = {each.name: each.read_bytes() for each in tmp_path.iterdir()}
    server = cli("certs", str(tmp_path))
    assert (server.code, server.err) == (
        1,
        f"forebay: {tmp_path / 'server.pem'} exists; --force overwrites it\n",
    )
    client = cli("certs", str(tmp_path), "--client", "b.example", "--client", "a.example")
    assert client.err == f"forebay: {tmp_path / 'client-a.example.pem'} exists; --force overwrites it\n"
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == before
    assert cli("certs", str(tmp_path), "--force").code == 0
    changed = {name for name, data in before.items() if (tmp_path / name).read_bytes() != data}
    assert changed == {"server.pem", "server-key.pem"}
    assert mode(tmp_path / "server-key.pem") == 0o600


def test_certs_makes_one_more_client_of_the_same_ca(cli: Run, tmp_path: Path) -> None:
    assert cli("certs", str(tmp_path)).code == 0
    made = cli("certs", str(tmp_path), "--client", "late.example", "--json").objects
    assert [(each["what"], each["new"]) for each in made] == [("ca", False), ("client", True)]


def test_certs_says_what_can_not_be(cli: Run, tmp_path: Path) -> None:
    accented = cli("certs", str(tmp_path), "--client", "bücher.example")
    assert (accented.code, accented.err.count("can't stand in a certificate")) == (1, 1)
    twice = cli("certs", str(tmp_path), "--client", "a://b", "--client", "a:///b")
    assert "would share" in twice.err
    assert not list(tmp_path.iterdir())
    cli("certs", str(tmp_path / "one"))
    cli("certs", str(tmp_path / "two"))
    os.replace(tmp_path / "two" / "ca-key.pem", tmp_path / "one" / "ca-key.pem")
    assert "no CA to go on with" in cli("certs", str(tmp_path / "one"), "--client", "a.example").err
    (tmp_path / "one" / "ca-key.pem").unlink()
    gone = cli("certs", str(tmp_path / "one"), "--client", "a.example")
    assert gone.err == f"forebay: {tmp_path / 'one' / 'ca-key.pem'}: No such file or directory\n"


def test_certs_without_its_package_says_what_to_install(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "forebay.cli.issue", raising=False)
    monkeypatch.delattr("forebay.cli.issue", raising=False)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    done = cli("certs", str(tmp_path))
    assert (done.code, done.err.count("pip install 'forebay[auth]'")) == (1, 1)


@contextmanager
def served(arguments: list[str], cwd: Path) -> Iterator[dict[str, str]]:
    """Where a server listens that runs until the block is left."""
    with subprocess.Popen(
        command(*arguments), cwd=cwd, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0


def asking(curl: list[str], cwd: Path) -> ssl.SSLContext:
    """What a command of curl connects with; stricter than curl is, as newer Pythons are."""
    options = dict(pairwise(curl))
    context = ssl.create_default_context(cafile=str(cwd / options["--cacert"]))
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_STRICT
    context.load_cert_chain(cwd / options["--cert"], cwd / options["--key"])
    return context


def port_of(address: str) -> str:
    """An address by which this machine reaches one that may be on all."""
    return f"127.0.0.1:{address.rpartition(':')[2]}"


def check_commands(serve: str, curl: str, cwd: Path) -> None:
    """Run the commands, but for the ports."""
    free = re.sub(r"(--(?:http|tcp) [\d.]+):\d+", r"\1:0", serve)
    extra = [] if "--http" in serve else ["--http", "127.0.0.1:0", "--tcp", "127.0.0.1:0"]
    context = asking(shlex.split(curl), cwd)
    given = [*shlex.split(free)[1:], *extra, "--store", "memory:"]
    with served(given, cwd) as ready, Secured(port_of(ready["http"]), context) as client:
        status, reply = client.get(curl.rpartition(":8080")[2])
    assert (status, reply["tenant"], reply["role"]) == (200, "default", "write")


def test_what_certs_says_to_do_next_works(cli: Run, tmp_path: Path) -> None:
    shown = cli("certs", str(tmp_path), "--client", "billing.example").out
    serve, curl = (line.strip() for line in shown.splitlines()[-2:])
    check_commands(serve, curl, tmp_path)


def test_the_commands_of_the_documents_work(
    cli: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    certs, serve, curl = OPERATIONS.split("```sh tls\n")[1].split("\n```")[0].splitlines()
    assert cli(*shlex.split(certs)[1:]).code == 0
    check_commands(serve, curl, tmp_path)


# Who may connect.


@pytest.mark.parametrize("address", ["0.0.0.0:0", "[::]:0"])
def test_serve_lets_no_other_machine_in_unasked_or_in_clear(address: str, tmp_path: Path) -> None:
    done = run(tmp_path, "serve", "--tcp", address, "--store", "memory:", "--log-level", "error")
    assert (done.code, done.out) == (2, "")
    nobody, clear, instead = done.err.splitlines()
    assert nobody.startswith(
        f"forebay: tcp on {address}: other machines can connect there, and nobody is asked"
    )
    assert clear.startswith(f"tcp on {address}: other machines can connect there, and tokens and messages")
    assert instead == "or listen on 127.0.0.1 only; --insecure starts the server anyway"


def test_serve_with_tokens_in_clear_is_refused_as_well(tmp_path: Path) -> None:
    given = ["--tcp", "0.0.0.0:0", "--store", "memory:", "--admin-token", "s", "--log-level", "error"]
    done = run(tmp_path, "serve", *given)
    assert done.code == 2
    assert "set tls_cert and tls_key" in done.err
    assert "admin_token" not in done.err


def started(cwd: Path, *flags: str) -> tuple[str, str]:
    """Start a server on a store in memory, push over TCP, stop it: its address and its log."""
    given = ["serve", "--http", "off", "--store", "memory:", *flags]
    with subprocess.Popen(
        command(*given),
        cwd=cwd,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=PATIENCE_S)
        assert process.returncode == 0, log
    return json.loads(line)["tcp"], log


def test_serve_insecure_starts_and_warns(tmp_path: Path) -> None:
    address, log = started(tmp_path, "--insecure", "--tcp", "0.0.0.0:0")
    assert address.startswith("0.0.0.0:")
    assert log.count("WARNING forebay: insecure: tcp on 0.0.0.0:0: other machines can connect there") == 2


def test_serve_with_tokens_and_tls_may_be_reached_by_other_machines(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path / "ca").server())
    secured = ["--tls-cert", certificate, "--tls-key", key, "--admin-token", "s"]
    address, log = started(tmp_path, "--tcp", "0.0.0.0:0", *secured)
    assert address.startswith("0.0.0.0:")
    assert "insecure" not in log


def test_a_name_of_this_machine_is_not_reached_by_others(tmp_path: Path) -> None:
    address, log = started(tmp_path, "--tcp", "localhost:0")
    assert address.startswith(("127.", "[::1]"))
    assert "insecure" not in log


def test_tokens_of_flashq_are_enough_for_its_doors_alone(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path / "ca").server())
    secured = ["--tls-cert", certificate, "--tls-key", key, "--flashq-tokens", "f", "--flashq", "0.0.0.0:0"]
    _, log = started(tmp_path, "--tcp", "127.0.0.1:0", *secured)
    assert "insecure" not in log
    refused = run(
        tmp_path, "serve", "--store", "memory:", "--tcp", "0.0.0.0:0", *secured, "--log-level", "error"
    )
    assert refused.err.startswith("forebay: tcp on 0.0.0.0:0: other machines can connect there, and nobody")


def test_tokens_in_the_store_let_others_in_after_a_restart(tmp_path: Path) -> None:
    certificate, key = map(str, Authority(tmp_path / "ca").server())
    secured = ["--tls-cert", certificate, "--tls-key", key, "--log-level", "error"]
    kept = ["--http", "off", "--data", str(tmp_path / "data")]
    open_to_all = ["serve", *kept, "--tcp", "0.0.0.0:0", *secured]
    assert run(tmp_path, *open_to_all).code == 2
    alone = ["serve", *kept, "--tcp", "127.0.0.1:0", "--unix", "./socket"]
    with served(alone, tmp_path), Raw(str(tmp_path / "socket")) as client:
        assert client.ask({"cmd": "TOKENCREATE", "role": "admin", "name": "boss"})["ok"]
    with served(open_to_all, tmp_path) as ready:
        assert ready["tcp"].startswith("0.0.0.0:")


def test_serve_names_the_file_of_a_certificate_that_is_not_there(tmp_path: Path) -> None:
    given = ["--tls-cert", "none.pem", "--tls-key", "none.pem", "--log-level", "error"]
    done = run(tmp_path, "serve", "--tcp", "127.0.0.1:0", *given)
    assert (done.code, done.err) == (2, "forebay: none.pem: can't be read: No such file or directory\n")
    assert not (tmp_path / "forebay-data").exists()

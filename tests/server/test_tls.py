"""Certificates and keys: a server that speaks TLS, and files that are wrong."""

import asyncio
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from pageport.errors import ConfigurationError
from pageport.server.config import ServerConfig
from pageport.server.tls import tls_context

from .served import served


class Pair(NamedTuple):
    certificate: str
    key: str


MakePair = Callable[..., Pair]


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> MakePair:
    """Make a certificate that signs itself, and its key, once for each name."""
    folder = tmp_path_factory.mktemp("tls")

    def make(name: str, *options: str) -> Pair:
        pair = Pair(str(folder / f"{name}.pem"), str(folder / f"{name}.key"))
        if not Path(pair.certificate).exists():
            subject = ["-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
            files = ["-keyout", pair.key, "-out", pair.certificate, *(options or ["-nodes"])]
            curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
            command = ["openssl", "req", "-x509", "-days", "2", *curve, *subject, *files]
            subprocess.run(command, check=True, capture_output=True)
        return pair

    return make


async def status_over_tls(settings: dict[str, str], trusted: str, shown: Pair | None = None) -> int:
    """Ask a server of these settings for its version, with ``trusted`` as the only authority."""
    client_context = ssl.create_default_context(cafile=trusted)
    if shown is not None:
        client_context.load_cert_chain(*shown)
    async with served(**settings) as server, httpx.AsyncClient(verify=client_context) as client:
        return (await client.get(f"{server.url}/version")).status_code


def settings_of(pair: Pair, **others: str) -> dict[str, str]:
    return {"ssl_certfile": pair.certificate, "ssl_keyfile": pair.key, **others}


def test_a_server_with_a_certificate_is_trusted_by_who_knows_it(make_pair: MakePair) -> None:
    server, other = make_pair("server"), make_pair("other")
    assert asyncio.run(status_over_tls(settings_of(server), server.certificate)) == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        asyncio.run(status_over_tls(settings_of(server), other.certificate))


def test_one_file_may_hold_certificate_and_key(make_pair: MakePair, tmp_path: Path) -> None:
    pair, both = make_pair("server"), tmp_path / "both.pem"
    both.write_text(Path(pair.key).read_text() + Path(pair.certificate).read_text())
    assert asyncio.run(status_over_tls({"ssl_certfile": str(both)}, pair.certificate)) == 200


def test_clients_must_show_a_certificate_where_authorities_are_named(make_pair: MakePair) -> None:
    server, client, other = make_pair("server"), make_pair("client"), make_pair("other")
    settings = settings_of(server, ssl_ca_certs=client.certificate)
    assert asyncio.run(status_over_tls(settings, server.certificate, client)) == 200
    for shown in (None, other):
        with pytest.raises((httpx.ReadError, httpx.RemoteProtocolError, httpx.ConnectError)):
            asyncio.run(status_over_tls(settings, server.certificate, shown))


def refusal(**settings: str) -> str:
    with pytest.raises(ConfigurationError) as refused:
        tls_context(ServerConfig(**settings))  # type: ignore[arg-type]
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_missing_file_is_named(make_pair: MakePair, tmp_path: Path) -> None:
    pair, missing = make_pair("server"), str(tmp_path / "missing.pem")
    assert refusal(ssl_certfile=missing).startswith(f"--ssl-certfile: {missing} cannot be read: No such file")
    assert refusal(ssl_certfile=pair.certificate, ssl_keyfile=missing).startswith(f"--ssl-keyfile: {missing} cannot")
    assert refusal(**settings_of(pair, ssl_ca_certs=missing)).startswith(f"--ssl-ca-certs: {missing} cannot be read")


def test_files_that_do_not_belong_together_are_told(make_pair: MakePair) -> None:
    pair = make_pair("server")._replace(key=make_pair("other").key)
    assert "is not the one of the certificate" in refusal(**settings_of(pair))


def test_files_of_the_wrong_kind_are_told(make_pair: MakePair, tmp_path: Path) -> None:
    pair, text = make_pair("server"), tmp_path / "text"
    text.write_text("no PEM")
    assert "holds no certificate" in refusal(ssl_certfile=pair.key, ssl_keyfile=pair.certificate)
    assert "holds no private key" in refusal(ssl_certfile=pair.certificate)
    assert "holds no certificate" in refusal(**settings_of(pair, ssl_ca_certs=str(text)))


@pytest.mark.parametrize("option", ["ssl_certfile", "ssl_keyfile", "ssl_ca_certs"])
def test_a_damaged_file_is_told(make_pair: MakePair, tmp_path: Path, option: str) -> None:
    settings = settings_of(make_pair("server"), ssl_ca_certs=make_pair("client").certificate)
    damaged = tmp_path / "damaged"
    head, *_, tail = Path(settings[option]).read_text().splitlines()
    damaged.write_text(f"{head}\nAAAA\n{tail}\n")
    assert refusal(**settings | {option: str(damaged)}).endswith("Make the file anew.")


def test_an_encrypted_key_asks_nobody(make_pair: MakePair) -> None:
    pair = make_pair("locked", "-passout", "pass:secret")
    assert "is encrypted" in refusal(**settings_of(pair))


@pytest.mark.parametrize("option", ["ssl_keyfile", "ssl_ca_certs"])
def test_what_needs_a_certificate_is_refused_without(option: str) -> None:
    with pytest.raises(ConfigurationError, match="ssl-certfile"):
        ServerConfig(**{option: "x"})  # type: ignore[arg-type]

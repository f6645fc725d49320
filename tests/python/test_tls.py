"""TLS, client certificates and tokens, against a server that wants them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from pathlib import Path
from typing import Any, Iterator

import numpy as np
import pytest

import blockd
from support.problems import system

TOKEN = "a-secret-of-the-tests"


def openssl(folder: Path, *arguments: str) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


def certificate(folder: Path, name: str, *extensions: str) -> None:
    """One of our own authority, in NAME.crt and NAME.key."""
    (folder / f"{name}.ext").write_text("\n".join(extensions))
    openssl(folder, "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
    openssl(folder, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.crt", "-CAkey", "ca.key",
            "-CAcreateserial", "-days", "2", "-out", f"{name}.crt", "-extfile", f"{name}.ext")


@pytest.fixture(scope="module")
def files(tmp_path_factory: Any) -> Path:
    folder: Path = tmp_path_factory.mktemp("tls")
    openssl(folder, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=authority", "-days", "2")
    certificate(folder, "server", "subjectAltName=DNS:solver.example,IP:127.0.0.1")
    certificate(folder, "client", "subjectAltName=DNS:alice.example")
    (folder / "tenants.textproto").write_text(
        'tenant { name: "alice" identity { dns: "alice.example" } }\n'
        'tenant { name: "bob" identity { token_sha256: "%s" } }\nrefuse_unlisted: true\n'
        % hashlib.sha256(TOKEN.encode()).hexdigest())
    return folder


def serve(files: Path, folder: Path, *arguments: str) -> "tuple[Any, str]":
    ports = folder / "ports"
    server = subprocess.Popen(
        [os.environ["BLOCKD_PROGRAM"], "--port=0", "--metrics_port=-1", f"--port_file={ports}",
         f"--tls_cert_file={files}/server.crt", f"--tls_key_file={files}/server.key",
         f"--tenants_file={files}/tenants.textproto", "--drain_grace=0s", "--log_level=warn", *arguments])
    while not ports.exists() or "grpc=" not in ports.read_text():
        assert server.poll() is None
    return server, f"127.0.0.1:{ports.read_text().split('grpc=')[1].split()[0]}"


@pytest.fixture
def by_token(files: Path, tmp_path: Path) -> Iterator[str]:
    server, target = serve(files, tmp_path)
    yield target
    server.terminate()
    server.wait(60)


@pytest.fixture
def by_certificate(files: Path, tmp_path: Path) -> Iterator[str]:
    server, target = serve(files, tmp_path, f"--tls_client_ca_file={files}/ca.crt")
    yield target
    server.terminate()
    server.wait(60)


def works(target: str, **options: Any) -> None:
    D, E = system(3, 2)
    with blockd.connect(target, timeout=20.0, **options) as client, client.factor(D, E) as A:
        x = A.solve(np.ones(6))
        with client.session() as session:
            np.testing.assert_array_equal(session.send(A, np.ones(6)).result(), x)
    with blockd.connect(target, timeout=20.0, stream_threshold_bytes=1, **options) as client:
        client.factor(D, E).release()

    async def twin() -> None:
        async with blockd.aio.connect(target, timeout=20.0, **options) as client:
            async with await client.factor(D, E) as A:
                np.testing.assert_array_equal(await A.solve(np.ones(6)), x)

    asyncio.run(twin())


def fails(target: str, kind: Any, **options: Any) -> None:
    with blockd.connect(target, timeout=5.0, retry=blockd.Retry(max_attempts=1), **options) as client:
        with pytest.raises(kind):
            client.info()


def test_a_token_says_who_asks(files: Path, by_token: str) -> None:
    ca = (files / "ca.crt").read_bytes()
    works(by_token, tls=blockd.Tls(ca), token=TOKEN)
    works(by_token, tls=blockd.Tls(ca, server_name="solver.example"), token=TOKEN)
    fails(by_token, blockd.Unauthenticated, tls=blockd.Tls(ca), token="another")
    fails(by_token, blockd.Unauthenticated, tls=blockd.Tls(ca))
    fails(by_token, blockd.Unavailable, tls=blockd.Tls(ca, server_name="other.example"), token=TOKEN)
    fails(by_token, blockd.Unavailable, tls=True, token=TOKEN)  # not an authority of the system
    fails(by_token, blockd.Unavailable, token=TOKEN)


def test_a_certificate_says_who_asks(files: Path, by_certificate: str) -> None:
    ca = (files / "ca.crt").read_bytes()
    own = blockd.Tls(ca, (files / "client.crt").read_bytes(), (files / "client.key").read_bytes())
    works(by_certificate, tls=own)
    fails(by_certificate, blockd.Unavailable, tls=blockd.Tls(ca))

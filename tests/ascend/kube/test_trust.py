"""Certificates of the cluster's servers: those that kubectl accepts are accepted, and no others."""

import asyncio
import ssl
from pathlib import Path

import pytest

from ascend.kube.identity import trusting
from tests.allocator.authority import Authority


async def handshake(authority: Authority, context: ssl.SSLContext, *names: str) -> None:
    """Connect to a server with a certificate of an authority."""
    pair = authority.sign("server", *names)
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(pair.cert, pair.key)

    async def ends(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(ends, "127.0.0.1", 0, ssl=serving) as server:
        host, port = server.sockets[0].getsockname()
        reader, writer = await asyncio.open_connection(host, port, ssl=context)
        await reader.read()
        writer.close()


async def test_an_authority_without_key_usage_is_trusted_on_every_python(tmp_path: Path) -> None:
    authority = Authority(tmp_path)  # made by `openssl req -x509`: without the extensions that Python 3.13 demands
    await handshake(authority, trusting(authority.cert), "IP:127.0.0.1")
    await handshake(authority, trusting(cadata=authority.cert.read_text()), "IP:127.0.0.1")


async def test_other_authorities_and_other_names_are_refused(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"self.signed|unable to get local issuer"):
        await handshake(authority, trusting(other.cert), "IP:127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError, match="IP address mismatch"):
        await handshake(authority, trusting(authority.cert), "IP:127.0.0.2")

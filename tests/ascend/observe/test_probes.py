"""The HTTP endpoints of a daemon."""

import socket

import aiohttp
from aiohttp import web
from prometheus_client import CollectorRegistry

from ascend.observe.probes import add_probes
from ascend.serving.http import serve_http


async def test_each_page_has_its_own_checks_and_names_the_failed_ones() -> None:
    problems: dict[str, str | None] = {"start": "no chips yet", "live": None, "ready": "no kubelet"}
    app = web.Application()
    add_probes(
        app,
        registry=CollectorRegistry(),
        ready={"kubelet": lambda: problems["ready"]},
        live={"scanner": lambda: problems["live"]},
        started={"chips": lambda: problems["start"], "lock": lambda: None},
    )
    async with serve_http(app, "127.0.0.1:0") as address, aiohttp.ClientSession() as session:

        async def ask(path: str) -> tuple[int, str]:
            async with session.get(f"http://{address}{path}") as answer:
                return answer.status, await answer.text()

        assert await ask("/startupz") == (503, "[-] chips: no chips yet\n[+] lock: ok\n")
        assert await ask("/livez") == (200, "[+] scanner: ok\n")
        assert await ask("/readyz") == (503, "[-] kubelet: no kubelet\n")
        problems |= {"start": None, "live": "it stands still", "ready": None}
        assert (await ask("/startupz"))[0] == 200
        assert await ask("/livez") == (503, "[-] scanner: it stands still\n")
        assert (await ask("/readyz"))[0] == 200
        # A program starts only once.
        problems["start"] = "chips are gone"
        assert (await ask("/startupz"))[0] == 200


async def test_a_daemon_without_checks_is_live_if_it_answers() -> None:
    app = web.Application()
    add_probes(app, registry=CollectorRegistry(), ready={})
    async with serve_http(app, "127.0.0.1:0") as address, aiohttp.ClientSession() as session:
        for path in ("/startupz", "/livez", "/readyz"):
            async with session.get(f"http://{address}{path}") as answer:
                assert (answer.status, await answer.text()) == (200, "ok\n")


async def test_without_a_host_ipv4_and_ipv6_addresses_are_served() -> None:
    app = web.Application()
    add_probes(app, registry=CollectorRegistry(), ready={})
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serve_http(app, f":{port}"), aiohttp.ClientSession() as session:
        for host in ("127.0.0.1", "[::1]"):
            async with session.get(f"http://{host}:{port}/livez") as answer:
                assert answer.status == 200

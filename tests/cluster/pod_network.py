"""A network for pods: a bridge of this machine, an address for each node, and the addresses of Services.

There is no kube-proxy, which would change the machine's packet filter: the addresses of Services belong to the bridge,
and `ServiceProxy` forwards connections from them to the endpoints.
"""

import asyncio
import contextlib
import http.client
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Self

from tests.cluster import reaper
from tests.cluster.api import Server
from tests.cluster.errors import ClusterError

_PREFIX: Final = "aa"
_POLL_S: Final = 0.1
_CONNECTING_S: Final = 2.0
_CLOSING_S: Final = 1.0
_CHUNK: Final = 1 << 16
_SUBNETS: Final = range(64, 128)


class PodNetwork:
    """A bridge with the network 10.N.0.0/16, of which no other interface has an address.

    Its name has the PID of this process, so that the next one removes it if this one is killed.
    """

    def __init__(self, name: str, number: int) -> None:
        self._name = name
        self._number = number

    @classmethod
    def create(cls) -> Self:
        """Create it.

        Raises:
            ClusterError: the kernel refused, or all networks are taken.
        """
        for link in json.loads(_ip("-json", "link", "show", "type", "bridge") or "[]"):
            owner = str(link["ifname"]).removeprefix(_PREFIX)
            if link["ifname"] != owner and owner.isdigit() and not reaper.start_time(int(owner)):
                _ip("link", "delete", link["ifname"])
        addresses = [each["local"] for link in json.loads(_ip("-json", "address")) for each in link["addr_info"]]
        number = next((each for each in _SUBNETS if not any(a.startswith(f"10.{each}.") for a in addresses)), None)
        if number is None:
            raise ClusterError("no network of 10.64.0.0/10 is free for pods")
        network = cls(f"{_PREFIX}{os.getpid()}", number)
        # Without an address of its own it takes the lowest one of its ports, and changes it with every pod: connections
        # to it hang until the others have noticed.
        _ip("link", "add", network._name, "address", f"02:00:0a:{number:02x}:00:01", "type", "bridge")
        _ip("link", "set", network._name, "up")
        _ip("address", "add", f"{network._address(0, 1)}/16", "dev", network._name)
        return network

    def close(self) -> None:
        """Remove it."""
        _ip("link", "delete", self._name)

    @property
    def services(self) -> str:
        """The range of the addresses of Services; the first one is the API server's."""
        return f"{self._address(200, 0)}/24"

    @property
    def api_service(self) -> str:
        """The address of the Service `kubernetes`."""
        return self._address(200, 1)

    def add(self, address: str) -> None:
        """Let the bridge have an address of a node or of a Service."""
        with contextlib.suppress(ClusterError):  # it has it already
            _ip("address", "add", f"{address}/32", "dev", self._name)

    def node_address(self, name: str) -> str:
        """Return the address of a node, and let the bridge have it."""
        address = self._address(1, _number(name))
        self.add(address)
        return address

    def configuration(self, name: str, folder: Path) -> dict[str, Any]:
        """Return the CNI configuration of a node, whose pods have addresses of their own range."""
        third = 10 + _number(name)
        pods = {"rangeStart": self._address(third, 1), "rangeEnd": self._address(third, 250)}
        addresses = {"type": "host-local", "dataDir": str(folder / "addresses")}
        ranges = [[{"subnet": f"{self._address(0, 0)}/16", **pods}]]
        bridge = {"type": "bridge", "bridge": self._name, "ipam": {**addresses, "ranges": ranges}}
        return {"cniVersion": "0.3.1", "name": "test", **bridge}

    def _address(self, third: int, last: int) -> str:
        return f"10.{self._number}.{third}.{last}"


class ServiceProxy:
    """Forwards connections from the addresses of Services to their ready endpoints; use as a context manager.

    Args:
        network: the network.
        api: the API server.
    """

    def __init__(self, network: PodNetwork, api: Server) -> None:
        self._network = network
        self._api = api
        self._targets: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self._servers: dict[tuple[str, int], asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._run()), name="service-proxy", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    async def _run(self) -> None:
        host, _, port = self._api.url.rpartition("/")[2].rpartition(":")
        api = {(self._network.api_service, 443): [(host, int(port))]}
        self._targets = api
        try:
            while not self._ended.is_set():
                for address in [each for each in self._targets if each not in self._servers]:
                    self._network.add(address[0])
                    with contextlib.suppress(OSError):  # at the next turn
                        self._servers[address] = await asyncio.start_server(self._forwarder(address), *address)
                await asyncio.sleep(_POLL_S)
                with contextlib.suppress(ClusterError, OSError, http.client.HTTPException):  # at the next turn
                    self._targets |= api | await asyncio.to_thread(self._read)
        finally:
            for server in self._servers.values():
                server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)

    def _forwarder(self, address: tuple[str, int]) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], None]:
        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(_forward(tuple(self._targets[address]), reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        return connected

    def _read(self) -> dict[tuple[str, int], list[tuple[str, int]]]:
        slices: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for each in self._api.get("/apis/discovery.k8s.io/v1/endpointslices")["items"]:
            name = each["metadata"].get("labels", {}).get("kubernetes.io/service-name", "")
            slices.setdefault((each["metadata"]["namespace"], name), []).append(each)
        found = {}
        for service in self._api.get("/api/v1/services")["items"]:
            own = slices.get((service["metadata"]["namespace"], service["metadata"]["name"]), [])
            for port in service["spec"].get("ports", ()):
                address = (service["spec"]["clusterIP"], port["port"])
                if address != (self._network.api_service, 443):
                    found[address] = [target for each in own for target in _targets(each, port.get("name"))]
        return found


async def _forward(
    targets: tuple[tuple[str, int], ...], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Connect a client with the first target that answers, until one of both closes; without one, close at once."""
    writers = [writer]
    try:
        if (backend := await _connect(targets)) is not None:
            back_reader, back_writer = backend
            writers.append(back_writer)
            ways = [asyncio.create_task(way) for way in (_copy(reader, back_writer), _copy(back_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
    finally:
        for each in writers:
            each.close()
            with contextlib.suppress(OSError, TimeoutError):
                await asyncio.wait_for(each.wait_closed(), _CLOSING_S)
            each.transport.abort()


async def _connect(targets: tuple[tuple[str, int], ...]) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Connect with the first target that answers.

    The address of a pod that has ended may answer with nothing at all, for two minutes; the client, which is connected
    with this proxy already, would wait for as long. Its own attempt to connect would fail.
    """
    for target in targets:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_CONNECTING_S):
                return await asyncio.open_connection(*target)
    return None


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while chunk := await reader.read(_CHUNK):
            writer.write(chunk)
            await writer.drain()


def _targets(piece: dict[str, Any], port_name: str | None) -> Iterable[tuple[str, int]]:
    for port in piece.get("ports") or ():
        if port.get("name") == port_name:
            for endpoint in piece.get("endpoints") or ():
                if endpoint.get("conditions", {}).get("ready", True):
                    yield from ((address, port["port"]) for address in endpoint["addresses"])


def _number(node: str) -> int:
    return int(node.removeprefix("n"))


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"ip {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout

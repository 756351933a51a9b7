"""Our two programs in the scenarios: the installed console scripts, run as processes that can be killed."""

import json
import sys
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import aiohttp

from ascend.products import ASCEND_910B_16
from device_plugin.pods.container_edits import MANAGER_NODE

BIN: Final = Path(sys.executable).parent
DEVICE_NODES: Final = (MANAGER_NODE, *(f"davinci{chip_id}" for chip_id in range(ASCEND_910B_16.chips)))
"""The device nodes of the largest server."""


class Program(ABC):
    """One of our programs."""

    @property
    @abstractmethod
    def runs(self) -> bool:
        """Whether it runs."""

    @abstractmethod
    async def start(self) -> None:
        """Start it."""

    @abstractmethod
    async def pause(self) -> None:
        """Stop it with SIGSTOP: it keeps its connections and answers nothing."""

    @abstractmethod
    async def kill(self) -> None:
        """Kill it with SIGKILL."""

    @abstractmethod
    async def stop(self) -> None:
        """Stop it with SIGTERM and wait for its end."""


async def is_ready(url: str) -> bool:
    """Whether a program's readiness probe succeeds."""
    return await _succeeds(f"{url}/readyz")


async def stands_by(url: str) -> bool:
    """Whether a device plugin can take over from another one; a DaemonSet then takes its pod for available."""
    return await _succeeds(f"{url}/standbyz")


async def is_live(url: str) -> bool:
    """Whether a program's liveness probe succeeds; from then on a signal ends it in order."""
    return await _succeeds(f"{url}/livez")


async def _succeeds(probe: str) -> bool:
    try:
        async with aiohttp.ClientSession() as session, session.get(probe, ssl=False) as answer:
            return answer.status == 200
    except aiohttp.ClientError:
        return False


def plugin_command(
    program: Path,
    *,
    kubeconfig: Path,
    node: str,
    state_file: Path | None,
    device_root: Path,
    pods_url: str,
    http_address: str,
    **flags: str,
) -> list[str]:
    """Return the command line of a device plugin; without a state file of simulated chips it uses the DCMI library."""
    driver = ("simulated", "--simulated-state", str(state_file)) if state_file is not None else ("dcmi",)
    return [
        *(str(program), "--kubeconfig", str(kubeconfig), "--node-name", node),
        *("--driver", *driver, "--device-root", str(device_root), "--kubelet-pods-url", pods_url),
        *("--http-address", http_address, "--scan-period-s", "0.3"),
        *_flags(flags),
    ]


def allocator_command(
    program: Path, *, kubeconfig: Path, address: str, grpc_address: str = "127.0.0.1:0", **flags: str
) -> list[str]:
    """Return the command line of the allocator."""
    return [
        *(str(program), "--kubeconfig", str(kubeconfig)),
        *("--extender-address", address, "--grpc-address", grpc_address),
        *_flags(flags),
    ]


def write_kubeconfig(path: Path, server: str, token: str) -> Path:
    """Write a kubeconfig file for the user of the token."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": server}}],
        "users": [{"name": "u", "user": {"token": token}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(document))
    return path


def _flags(flags: dict[str, str]) -> list[str]:
    return [part for name, text in flags.items() for part in (f"--{name.replace('_', '-')}", text)]

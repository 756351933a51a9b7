import json
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from sandbox.apiserver import ApiServer
from tests.device_plugin.api import RecordingClient
from tests.device_plugin.small_disk import FILES, SIZE, SmallDisk


@pytest.fixture
def folder() -> Iterator[Path]:
    # The paths of pytest's own folders are too long for a socket.
    with tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp", ignore_cleanup_errors=True) as path:
        yield Path(path)


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer() as running:
        yield running


@pytest.fixture
async def client(server: ApiServer, folder: Path) -> AsyncIterator[RecordingClient]:
    path = folder / "kubeconfig"
    path.write_text(json.dumps(server.kubeconfig()))
    async with await RecordingClient.connect(str(path)) as connected:
        yield connected


@pytest.fixture
def small_disk(folder: Path) -> Iterator[SmallDisk]:
    path = folder / "disk"
    path.mkdir()
    options = f"size={SIZE},nr_inodes={FILES},mode=755"
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", path], capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"a file system can't be mounted here: {mounted.stderr.decode().strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)

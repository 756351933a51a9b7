"""The checks of the kubelet's folder and sockets, and of the device plugin that serves there."""

import asyncio
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import aiohttp
import grpc

from ascend.addresses import join_address, split_address
from ascend.errors import Unreachable
from ascend.grammar import count
from device_plugin.device_types import CORES, WHOLE_CHIPS, DeviceType
from device_plugin.kubelet.channel import CHANNEL_OPTIONS
from device_plugin.kubelet.pod_resources import count_holders
from device_plugin.serving.instance_lock import NAME
from device_plugin.serving.other_plugin import SOCKET, accepts_connections
from device_plugin.serving.plugin_socket import KUBELET_SOCKET, PREFIX, read_socket_name
from device_plugin.settings import Settings
from npuctl.doctor.finding import Check, Finding, ok, problem, warning
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

CONNECT_S: Final = 2.0

_NO_KUBELET: Final = "`systemctl status kubelet`; the kubelet creates the socket when it starts"

_LOCAL: Final = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - nothing is bound here


def checks(settings: Settings) -> list[Check]:
    """Return the checks; each one can explain the findings of the next."""
    directory = settings.device_plugin_dir

    async def plugin() -> Sequence[Finding]:
        device_type = CORES if settings.dynamic_vnpus else WHOLE_CHIPS
        return [*await check_plugin(directory, device_type), *await check_readiness(settings.http_address)]

    return [
        Check(
            "kubelet's folder",
            "the folder in which plugins create their sockets is missing, or can't be written to",
            lambda: check_folder(directory),
        ),
        Check("kubelet.sock", "the kubelet accepts no registrations", lambda: check_socket(directory / KUBELET_SOCKET)),
        Check(
            "pod-resources",
            "the kubelet does not say which pods have its devices",
            lambda: check_pod_resources(settings.pod_resources_socket),
        ),
        Check(
            "device plugin",
            "none serves, several do, MindCluster's does too, it is not ready and says why, or it has lost its lock",
            plugin,
        ),
    ]


def check_folder(directory: Path) -> Sequence[Finding]:
    """Check that plugins can create their sockets there."""
    if not directory.is_dir():
        advice = "start the kubelet; in a container, mount this folder of the node at the same path"
        return [problem(f"{directory} does not exist", advice)]
    if not os.access(directory, os.W_OK | os.X_OK):
        advice = "run as root, and mount the folder writable"
        return [problem(f"user {os.geteuid()} can't write to {directory}", advice)]
    return [ok(f"{directory} exists and is writable")]


async def check_socket(path: Path) -> Sequence[Finding]:
    """Check that a kubelet accepts registrations."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return [problem(f"{path} is not a socket", _NO_KUBELET)]
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError:
        return [problem(f"{path} does not accept connections within {CONNECT_S:g} s", _NO_KUBELET)]
    except OSError as error:
        return [problem(f"{path}: {error.strerror or error}", _NO_KUBELET)]
    writer.close()
    return [ok(f"{path} accepts connections")]


async def check_pod_resources(path: Path) -> Sequence[Finding]:
    """Check that the kubelet lists the devices of its pods."""
    try:
        holders = await count_holders(path)
    except Unreachable as error:
        advice = "mount the folder of this socket; the plugin completes its record of the pods' chips from it"
        return [problem(error.message, advice)]
    return [ok(f"answers; {count(holders, 'pod')} with chips, vNPUs or AI cores")]


async def check_plugin(directory: Path, device_type: DeviceType = WHOLE_CHIPS) -> Sequence[Finding]:
    """Check that exactly one ascend-device-plugin serves, and holds the lock.

    Args:
        directory: the kubelet's device-plugin folder.
        device_type: what it serves beside vNPUs: chips, or AI cores.
    """
    sockets = sorted(directory.glob(f"{PREFIX}*.sock"))
    serving = [path for path in sockets if await _serves(path)]
    instances, suffixes = zip(*(read_socket_name(path.name) for path in serving), strict=True) if serving else ((), ())
    findings = []
    if len(set(instances)) == 1:
        types = [DeviceType(suffix) if suffix else device_type for suffix in sorted(set(suffixes))]
        findings.append(ok(f"serves {', '.join(device_type.resource for device_type in types)}"))
    elif serving:
        names = ", ".join(path.name for path in serving)
        advice = "run only one: each registers in place of the other"
        findings.append(problem(f"several plugins serve: {names}", advice))
    else:
        advice = "check its pod: `kubectl get pods -A -l app.kubernetes.io/part-of=ascend-affinity -o wide`"
        findings.append(problem("no ascend-device-plugin serves here", advice))
    if dead := [path.name for path in sockets if path not in serving]:
        advice = "a plugin that was killed left them; the next one removes them when it starts"
        findings.append(warning(f"sockets without a server: {', '.join(dead)}", advice))
    if await accepts_connections(directory / SOCKET):
        advice = "remove one of the two from the node: docs/mindcluster.md"
        findings.append(problem(f"MindCluster's device plugin serves too, on {SOCKET}; this one gives way", advice))
    findings.append(_lock(directory / NAME, serving=bool(serving)))
    return findings


async def check_readiness(address: str) -> Sequence[Finding]:
    """Return what the plugin waits for; nothing if its HTTP page can't be reached, as from outside the pod."""
    host, port = split_address(address)
    place = join_address(_LOCAL.get(host, host), port)
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=CONNECT_S)) as session,
            session.get(f"http://{place}/readyz") as answer,
        ):
            lines = (await answer.text()).splitlines()
    except (aiohttp.ClientError, OSError, UnicodeError):
        return []
    missing = [line.removeprefix("[-] ") for line in lines if line.startswith("[-] ")]
    if missing:
        advice = "the other checks explain what it waits for"
        return [problem(f"it is not ready: {'; '.join(missing)}", advice)]
    if not any(line.startswith("[+] ") for line in lines):
        sentence = f"the page at {place} is not the plugin's: another program, or another version"
        return [warning(sentence, "give the plugin's own --http-address")]
    return [ok("it is ready")]


def _lock(path: Path, *, serving: bool) -> Finding:
    try:
        with path.open() as file:
            try:
                # Shared, and released at once: a plugin that starts at this moment tries again.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return ok(f"{path.name} is held{_holder(file.fileno())}")
    except FileNotFoundError:
        sentence = f"there is no {path.name}: no plugin has run here"
        return warning(sentence) if serving else ok(sentence)
    except OSError as error:
        return warning(f"{path.name} can't be opened: {error.strerror}", "run as root")
    if serving:
        advice = "restart the plugin: without the lock a second plugin could start"
        return problem(f"{path.name} is not held, although a plugin serves", advice)
    return ok(f"{path.name} is not held")


def _holder(descriptor: int) -> str:
    """The process that holds the lock, if this PID namespace shows it."""
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        # Like "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF".
        words = line.split()
        if len(words) > 5 and words[1] == "FLOCK" and words[5] == place and words[4].isdigit():  # noqa: PLR2004
            return f" by {_process(words[4])}"
    return ""


def _process(pid: str) -> str:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return f"process {pid}"
    return f"process {pid} ({command[:60]})"


async def _serves(path: Path) -> bool:
    async with grpc.aio.insecure_channel(f"unix://{path}", options=CHANNEL_OPTIONS) as channel:
        try:
            await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=CONNECT_S)
        except grpc.aio.AioRpcError:
            return False
    return True

"""The kubelet's folder and sockets, and the plugin's own place in them."""

import asyncio
import fcntl
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import aiohttp
import grpc

from ascend.addresses import join_address
from ascend.errors import Unreachable
from ascend.observe.probes import split_address
from device_plugin.doctor.finding import Check, Finding
from device_plugin.kubelet.channel import CHANNEL_OPTIONS
from device_plugin.kubelet.pod_resources import read_ledger
from device_plugin.serving.instance_lock import NAME
from device_plugin.serving.registration import KUBELET_SOCKET, PREFIX
from device_plugin.settings import Settings
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

FOLDER, SOCKET, POD_RESOURCES, PLUGIN = "kubelet's folder", "kubelet.sock", "pod-resources", "our plugin"

CONNECT_S = 2.0

_LOCAL = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what it is bound to, from here


def checks(settings: Settings) -> Iterator[Check]:
    """The checks, in the order in which one explains the next."""
    directory = settings.device_plugin_dir

    async def folder() -> Sequence[Finding]:
        return [look_at_folder(directory)]

    async def socket() -> Sequence[Finding]:
        return [await look_at_socket(directory / KUBELET_SOCKET)]

    async def pod_resources() -> Sequence[Finding]:
        return [await look_at_pod_resources(settings.pod_resources_socket)]

    async def plugin() -> Sequence[Finding]:
        return [*await look_at_plugin(directory), *await look_at_readiness(settings.http_address)]

    yield Check(FOLDER, folder)
    yield Check(SOCKET, socket)
    yield Check(POD_RESOURCES, pod_resources)
    yield Check(PLUGIN, plugin)


def look_at_folder(directory: Path) -> Finding:
    """Whether plugins can put their sockets there."""
    if not directory.is_dir():
        advice = "start the kubelet; in a container, mount this folder of the node at the same path"
        return Finding(FOLDER, "problem", f"{directory} is not there", advice)
    if not os.access(directory, os.W_OK | os.X_OK):
        told = f"{directory} may not be written to by user {os.geteuid()}"
        return Finding(FOLDER, "problem", told, "run as root, and mount the folder writable")
    return Finding(FOLDER, "ok", f"{directory} is there and writable")


async def look_at_socket(path: Path) -> Finding:
    """Whether a kubelet listens for registrations."""
    problem = await _deaf(path)
    if problem is not None:
        advice = "`systemctl status kubelet`; the kubelet makes the socket when it starts"
        return Finding(SOCKET, "problem", problem, advice)
    return Finding(SOCKET, "ok", f"{path} accepts connections")


async def look_at_pod_resources(path: Path) -> Finding:
    """Whether the kubelet tells what its pods hold."""
    try:
        ledger = await read_ledger(path)
    except Unreachable as error:
        advice = "mount the folder of this socket; without it the plugin can't complete what pods were handed"
        return Finding(POD_RESOURCES, "problem", error.message, advice)
    holders = sum(bool(containers) for containers in ledger.pods.values())
    return Finding(POD_RESOURCES, "ok", f"answers; {holders} pods hold chips")


async def look_at_plugin(directory: Path) -> Sequence[Finding]:
    """Whether one plugin of ours serves, and no second waits for it to end."""
    sockets = sorted(directory.glob(f"{PREFIX}*.sock"))
    living = [path for path in sockets if await _serves(path)]
    findings = []
    if len(living) == 1:
        findings.append(Finding(PLUGIN, "ok", f"serves on {living[0].name}"))
    elif living:
        names = ", ".join(path.name for path in living)
        advice = "leave one: they fight for the kubelet"
        findings.append(Finding(PLUGIN, "problem", f"several serve: {names}", advice))
    else:
        advice = "look at its pod: `kubectl get pods -A -l app.kubernetes.io/component=device-plugin -o wide`"
        findings.append(Finding(PLUGIN, "problem", "no device plugin of ours serves here", advice))
    if dead := [path.name for path in sockets if path not in living]:
        told = f"sockets nobody serves: {', '.join(dead)}"
        findings.append(Finding(PLUGIN, "warning", told, "left by one that was killed; the next start removes them"))
    findings.append(_lock(directory / NAME, serving=bool(living)))
    return findings


async def look_at_readiness(address: str) -> Sequence[Finding]:
    """What the plugin itself is waiting for; nothing where its page is not reached, as from outside of its pod."""
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
        advice = "what it waits for is explained by the other checks"
        return [Finding(PLUGIN, "problem", f"it is not ready: {'; '.join(missing)}", advice)]
    if not any(line.startswith("[+] ") for line in lines):
        told = f"what answers at {place} is not its page: another program, or one of another version"
        return [Finding(PLUGIN, "warning", told, "give the plugin's own --http-address")]
    return [Finding(PLUGIN, "ok", "it says that it is ready")]


def _lock(path: Path, *, serving: bool) -> Finding:
    try:
        with path.open() as file:
            try:
                # Shared, and only for this moment: a plugin that is just starting tries again.
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return Finding(PLUGIN, "ok", f"{path.name} is held{_holder(file.fileno())}")
    except FileNotFoundError:
        return Finding(PLUGIN, "warning" if serving else "ok", f"{path.name} is not there: none has run here")
    except OSError as error:
        return Finding(PLUGIN, "warning", f"{path.name} can't be opened: {error.strerror}", "run as root")
    if serving:
        advice = "restart the plugin: two at once would not notice each other"
        return Finding(PLUGIN, "problem", f"nobody holds {path.name}, although a plugin serves", advice)
    return Finding(PLUGIN, "ok", f"nobody holds {path.name}")


def _holder(descriptor: int) -> str:
    """By whom, as far as this namespace of processes shows it."""
    status = os.fstat(descriptor)
    place = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    for line in Path("/proc/locks").read_text().splitlines():
        # As in "1: FLOCK  ADVISORY  WRITE 4711 08:01:1234 0 EOF".
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


async def _deaf(path: Path) -> str | None:
    """Why nobody can be reached on a socket; None where somebody can."""
    try:
        if not stat.S_ISSOCK(path.stat().st_mode):
            return f"{path} is not a socket"
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_unix_connection(path)
    except TimeoutError:
        return f"{path} does not accept connections within {CONNECT_S:g} s"
    except OSError as error:
        return f"{path}: {error.strerror or error}"
    writer.close()
    return None


async def _serves(path: Path) -> bool:
    async with grpc.aio.insecure_channel(f"unix://{path}", options=CHANNEL_OPTIONS) as channel:
        try:
            await pb_grpc.DevicePluginStub(channel).GetDevicePluginOptions(pb.Empty(), timeout=CONNECT_S)
        except grpc.aio.AioRpcError:
            return False
    return True

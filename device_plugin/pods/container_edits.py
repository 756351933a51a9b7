"""What the kubelet adds to a container to show the chips of the container, and no further chips.

``runtime``: environment variables for ascend-docker-runtime, which mounts the chips itself; ``devices``: plain device
nodes, for any runtime; ``both``: both, which works with either; ``cdi``: names of CDI devices, which the container
runtime looks up in a file that the plugin writes (docs/spec/hand-over.md#device-nodes,
docs/spec/hand-over.md#container-response; docs/spec/kube-api.md#metric-names).

The kubelet stores the answer and uses it again at every restart of the container, also after an upgrade of the plugin
(docs/spec/kubelet.md#using-the-response): so nothing in it may change between two starts of the node or the plugin.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from ascend.errors import Refusal
from ascend.reasons import Reason
from ascend.vnpus import Vnpu
from device_plugin.device_types import WHOLE_CHIPS, DeviceType

Injection: TypeAlias = Literal["runtime", "devices", "both", "cdi"]
"""A way to give chips to a container."""

InjectionSetting: TypeAlias = Literal["auto", "runtime", "devices", "both", "cdi"]
"""A way, or ``auto`` to detect it."""

VIRTUAL = "VIRTUAL"
"""The option with which ascend-docker-runtime takes the ids for those of vNPUs."""

VISIBLE_DEVICES = "ASCEND_VISIBLE_DEVICES"
RUNTIME_OPTIONS = "ASCEND_RUNTIME_OPTIONS"

RUNTIME_MARK = "ASCEND_DOCKER_RUNTIME"
"""ascend-docker-runtime sets it to ``True`` in the plugin's own container.

See docs/spec/hand-over.md#container-response.
"""

MANAGER_NODE = "davinci_manager"
"""The device node that every container with chips needs."""

OPTIONAL_NODES = ("hisi_hdc", "devmm_svm", "dvpp_cmdlist")
"""Added if the node has them."""

FABRIC_FOLDERS = ("uburma", "ummu")
"""Every device node in these folders is added if the server has it."""

CDI_VERSION = "0.5.0"
"""The first version in which a device name may begin with a digit."""

CDI_KIND = "huawei.com/npu"
CDI_FILE = "huawei.com-npu.json"

CDI_KUBELET: Final = (1, 29)
"""The first version of the kubelet that passes CDI devices of device plugins on by default."""

CDI_RUNTIMES: Final = {"containerd": (2, 0), "cri-o": (1, 28)}
"""The first version of each container runtime that takes CDI devices from the kubelet by default."""

HOST_ROOT = Path("/dev")
"""Where a container runtime finds the device nodes, and where containers see them."""


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What the kubelet adds to a container.

    Attributes:
        envs: environment variables.
        devices: device nodes: path in the container to path on the node, both with read and write access.
        cdi_devices: fully qualified names of CDI devices.
        mounts: folders: path in the container to path on the node, read-only.
    """

    envs: dict[str, str]
    devices: dict[str, str]
    cdi_devices: tuple[str, ...] = ()
    mounts: Mapping[str, str] = field(default_factory=dict)


def detect(setting: InjectionSetting, environment: Mapping[str, str], *, cdi: bool = False) -> Injection:
    """Return the way to use.

    Args:
        setting: the setting.
        environment: shows whether ascend-docker-runtime runs the plugin itself. It runs the node's other containers
            then, too, and ``auto`` leaves the chips to it: CDI would take from them the files of the driver that it
            mounts, and not keep it from obeying a container's own environment.
        cdi: whether containers of this node can get CDI devices.
    """
    if setting != "auto":
        return setting
    if environment.get(RUNTIME_MARK) == "True":
        return "runtime"
    return "cdi" if cdi else "devices"


def offers_cdi(container_runtime_version: str, kubelet_version: str) -> bool:
    """Return whether containers of a node can get CDI devices without a configuration of the node for that.

    See docs/spec/kubelet.md#using-the-response. What is unknown does not offer any.

    Args:
        container_runtime_version: as in the Node's status, such as ``containerd://2.1.4``.
        kubelet_version: likewise, such as ``v1.34.4``.
    """
    runtime, _, version = container_runtime_version.partition("://")
    first = CDI_RUNTIMES.get(runtime)
    return first is not None and _is_since(version, first) and _is_since(kubelet_version, CDI_KUBELET)


def _is_since(version: str, first: tuple[int, int]) -> bool:
    found = re.match(r"v?([0-9]{1,4})\.([0-9]{1,4})", version)
    return found is not None and (int(found[1]), int(found[2])) >= first


def shared_nodes(
    found: Collection[str], device_root: Path, list_folder: Callable[[Path], Iterable[str]]
) -> tuple[str, ...]:
    """Return the device nodes that every container with chips gets, as paths below the root.

    Args:
        found: the names of the files in the root.
        device_root: the folder of the device nodes on the node, normally ``/dev``.
        list_folder: returns the names of the files in a folder; nothing if there is no such folder.

    Raises:
        Refusal: the required one is missing: the driver is not loaded.
    """
    if MANAGER_NODE not in found:
        raise Refusal(Reason.DEVICE_NODE_MISSING, f"{device_root / MANAGER_NODE} is missing: is the NPU driver loaded?")
    fabric = [f"{folder}/{name}" for folder in FABRIC_FOLDERS for name in sorted(list_folder(device_root / folder))]
    return (MANAGER_NODE, *(node for node in OPTIONAL_NODES if node in found), *fabric)


def make_edits(
    chips: Sequence[int],
    injection: Injection,
    device_root: Path,
    list_folder: Callable[[Path], Iterable[str]],
    *,
    device_type: DeviceType = WHOLE_CHIPS,
) -> ContainerEdits:
    """Return the edits for a container with these chips, or vNPUs.

    Args:
        chips: their numbers in the order written on the pod, which is the order in the environment variable.
        injection: the way.
        device_root: the folder of the device nodes on the node, normally ``/dev``.
        list_folder: returns the names of the files in a folder; nothing if there is no such folder.
        device_type: their type.

    Raises:
        Refusal: a device node is missing, so the container could not be created.
    """
    if injection == "cdi":
        return ContainerEdits({}, {}, tuple(f"{CDI_KIND}={_cdi_name(device_type, chip)}" for chip in chips))
    own = [_device_node(device_type, chip) for chip in chips]
    envs, devices = {}, {}
    if injection in {"runtime", "both"}:
        ids = (device_type.vnpu(chip).vdev_id for chip in chips) if device_type.suffix else chips
        envs = {VISIBLE_DEVICES: ",".join(map(str, ids)), RUNTIME_OPTIONS: VIRTUAL if device_type.suffix else ""}
    if injection in {"devices", "both"}:
        found = {*list_folder(device_root)}
        if missing := [str(device_root / node.outside) for node in own if node.outside not in found]:
            raise Refusal(
                Reason.DEVICE_NODE_MISSING, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            )
        shared = (_Node(node, node) for node in shared_nodes(found, device_root, list_folder))
        devices = {f"/dev/{node.inside}": str(device_root / node.outside) for node in (*shared, *own)}
    return ContainerEdits(envs, devices)


class _Node(NamedTuple):
    """A device node: its path below ``/dev`` in the container and below the root on the node."""

    inside: str
    outside: str


def _device_node(device_type: DeviceType, number: int) -> _Node:
    if not device_type.suffix:
        return _Node(chip_node(number), chip_node(number))
    return _vnpu_node(device_type.vnpu(number))


def _vnpu_node(vnpu: Vnpu) -> _Node:
    return _Node(f"davinci{vnpu.vdev_id}", f"vdavinci{vnpu.vdev_id}")


def chip_node(chip_id: int) -> str:
    """Return the name of a chip's device node."""
    return f"davinci{chip_id}"


def _cdi_name(device_type: DeviceType, number: int) -> str:
    return device_type.device_name(number) if device_type.suffix else str(number)


def cdi_spec(
    chips: Iterable[int], shared: Sequence[str], device_root: Path, vnpus: Iterable[Vnpu] = ()
) -> dict[str, Any]:
    """Return the content of the CDI file: a device for each chip and vNPU, and what all of them need.

    A chip is named by its physical id; a vNPU has its own name.

    Args:
        chips: the node's chips, healthy or not: a name stays as long as a container may be restarted with it.
        shared: device nodes that every container with chips gets, as paths below the root.
        device_root: the folder of the device nodes on the node.
        vnpus: the node's vNPUs, likewise.
    """

    def edits(nodes: Iterable[_Node]) -> dict[str, Any]:
        return {"deviceNodes": [_cdi_node(node, device_root) for node in nodes]}

    devices = [(str(chip_id), _device_node(WHOLE_CHIPS, chip_id)) for chip_id in sorted(chips)]
    devices += [(vnpu.name, _vnpu_node(vnpu)) for vnpu in sorted(vnpus)]
    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [{"name": name, "containerEdits": edits([node])} for name, node in devices],
        "containerEdits": edits(_Node(node, node) for node in shared),
    }


def _cdi_node(node: _Node, device_root: Path) -> dict[str, str]:
    inside, outside = HOST_ROOT / node.inside, device_root / node.outside
    host_path = {} if inside == outside else {"hostPath": str(outside)}
    return {"path": str(inside), **host_path, "permissions": "rw"}

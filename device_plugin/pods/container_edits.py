"""What the kubelet adds to a container so that it sees its chips, and no others.

``runtime``: environment variables for ascend-docker-runtime, which mounts the chips itself; ``devices``: plain device
nodes, for any runtime; ``both``: both, which works with either; ``cdi``: names of CDI devices, which the container
runtime looks up in a file that the plugin writes (docs/spec/hand-over.md#device-nodes,
docs/spec/hand-over.md#container-response; docs/spec/kube-api.md#metric-names).

The kubelet stores the answer and uses it again at every restart of the container, also after an upgrade of the plugin
(docs/spec/kubelet.md#using-the-response): so nothing in it may change between two starts of the node or the plugin.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from ascend.errors import Refusal
from ascend.reasons import Reason

Injection: TypeAlias = Literal["runtime", "devices", "both", "cdi"]
"""A way to give chips to a container."""

InjectionSetting: TypeAlias = Literal["auto", "runtime", "devices", "both", "cdi"]
"""A way, or ``auto`` to detect it."""

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

HOST_ROOT = Path("/dev")
"""Where a container runtime finds the device nodes, and where containers see them."""


@dataclass(frozen=True, slots=True)
class ContainerEdits:
    """What the kubelet adds to a container.

    Attributes:
        envs: environment variables.
        devices: device nodes: path in the container to path on the node, both with read and write access.
        cdi_devices: fully qualified names of CDI devices.
    """

    envs: dict[str, str]
    devices: dict[str, str]
    cdi_devices: tuple[str, ...] = ()


def detect(setting: InjectionSetting, environment: Mapping[str, str]) -> Injection:
    """Return the way to use; ``auto`` depends on whether ascend-docker-runtime runs the plugin itself."""
    if setting != "auto":
        return setting
    return "runtime" if environment.get(RUNTIME_MARK) == "True" else "devices"


def shared_nodes(device_root: Path, list_folder: Callable[[Path], Iterable[Path]]) -> tuple[str, ...]:
    """Return the device nodes that every container with chips gets, as paths below the root.

    Args:
        device_root: the folder of the device nodes on the node, normally ``/dev``.
        list_folder: lists the files in a folder; nothing if there is no such folder.

    Raises:
        Refusal: the required one is missing: the driver is not loaded.
    """
    found = {path.name for path in list_folder(device_root)}
    if MANAGER_NODE not in found:
        raise Refusal(Reason.DEVICE_NODE_MISSING, f"{device_root / MANAGER_NODE} is missing: is the NPU driver loaded?")
    fabric = [
        f"{folder}/{path.name}"
        for folder in FABRIC_FOLDERS
        for path in sorted(list_folder(device_root / folder), key=lambda each: each.name)
    ]
    return (MANAGER_NODE, *(node for node in OPTIONAL_NODES if node in found), *fabric)


def make_edits(
    chips: Sequence[int], injection: Injection, device_root: Path, list_folder: Callable[[Path], Iterable[Path]]
) -> ContainerEdits:
    """Return the edits for a container with these chips.

    Args:
        chips: physical ids in the order written on the pod, which is the order in the environment variable.
        injection: the way.
        device_root: the folder of the device nodes on the node, normally ``/dev``.
        list_folder: lists the files in a folder; nothing if there is no such folder.

    Raises:
        Refusal: a device node is missing, so the container could not be created.
    """
    if injection == "cdi":
        return ContainerEdits({}, {}, tuple(f"{CDI_KIND}={chip_id}" for chip_id in chips))
    envs, devices = {}, {}
    if injection in {"runtime", "both"}:
        envs = {VISIBLE_DEVICES: ",".join(map(str, chips)), RUNTIME_OPTIONS: ""}
    if injection in {"devices", "both"}:
        own = [chip_node(chip_id) for chip_id in chips]
        found = {path.name for path in list_folder(device_root)}
        if missing := [str(device_root / node) for node in own if node not in found]:
            raise Refusal(
                Reason.DEVICE_NODE_MISSING, f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing"
            )
        nodes = [*shared_nodes(device_root, list_folder), *own]
        devices = {f"/dev/{node}": str(device_root / node) for node in nodes}
    return ContainerEdits(envs, devices)


def chip_node(chip_id: int) -> str:
    """Return the name of a chip's device node."""
    return f"davinci{chip_id}"


def cdi_spec(chips: Iterable[int], shared: Sequence[str], device_root: Path) -> dict[str, Any]:
    """Return the content of the CDI file: a device for each chip, named by its physical id, and what all of them need.

    Args:
        chips: the node's chips, healthy or not: a name stays as long as a container may be restarted with it.
        shared: device nodes that every container with chips gets, as paths below the root.
        device_root: the folder of the device nodes on the node.
    """

    def edits(nodes: Iterable[str]) -> dict[str, Any]:
        return {"deviceNodes": [_cdi_node(node, device_root) for node in nodes]}

    return {
        "cdiVersion": CDI_VERSION,
        "kind": CDI_KIND,
        "devices": [{"name": str(chip_id), "containerEdits": edits([chip_node(chip_id)])} for chip_id in sorted(chips)],
        "containerEdits": edits(shared),
    }


def _cdi_node(node: str, device_root: Path) -> dict[str, str]:
    host_path = {} if device_root == HOST_ROOT else {"hostPath": str(device_root / node)}
    return {"path": f"/dev/{node}", **host_path, "permissions": "rw"}

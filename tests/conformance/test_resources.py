"""Pods whose CPU and memory change in place, or are those of the whole pod, keep exactly their chips."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from ascend.chips import RESOURCE
from tests.cluster.api import HTTPError
from tests.cluster.binaries import MINOR
from tests.cluster.reaper import CGROUPS
from tests.conformance.node import PODS, PluginNode, restarts
from tests.conformance.test_containers import ONCE, container, place, slices

STRATEGIC: Final = "application/strategic-merge-patch+json"
IN_PLACE: Final = pytest.mark.skipif(MINOR < 33, reason="pods can be resized from 1.33 on")


def sized(name: str, chips: int, cpu: str = "100m", *args: Any, **more: Any) -> dict[str, Any]:
    """A container that requests chips, CPU and memory; a change of its memory restarts it."""
    made = container(name, chips, *args, **more)
    made["resources"]["limits"] |= {"cpu": cpu, "memory": "64Mi"}
    if ONCE not in args:
        made["resizePolicy"] = [{"resourceName": "memory", "restartPolicy": "RestartContainer"}]
    return made


def resize(node: PluginNode, pod: str, containers: str = "containers", name: str = "main", **quantities: str) -> None:
    resources = {"limits": quantities, "requests": quantities}
    change = {"spec": {containers: [{"name": name, "resources": resources}]}}
    node.cluster.api.request("PATCH", f"{PODS}/{pod}/resize", change, content_type=STRATEGIC)


def removed(group: Path) -> bool:
    """Remove a cgroup and those below it; return whether all are gone."""
    for folder, _, _ in os.walk(group, topdown=False):
        with contextlib.suppress(OSError):  # processes of a pod that was deleted are still there
            Path(folder).rmdir()
    return not group.exists()


@pytest.fixture
def pod_cgroups(node: PluginNode) -> Iterator[None]:
    """Restart the kubelet so that it makes a cgroup for each pod.

    Without, it ends itself when it resizes one, up to 1.36 also when it starts one with resources of the whole pod.
    """
    name = f"aa-{os.getpid()}"
    hierarchies = [path for path in (CGROUPS, *CGROUPS.iterdir()) if (path / "cgroup.procs").exists()]
    for hierarchy in hierarchies:
        (hierarchy / name).mkdir()
    node.node.pod_cgroups = f"/{name}"
    node.restart_kubelet()
    node.wait_until_allocatable()
    try:
        yield
    finally:
        node.clear()
        node.node.pod_cgroups = ""
        node.restart_kubelet()
        for hierarchy in hierarchies:
            node.wait_until(lambda hierarchy=hierarchy: removed(hierarchy / name), "no container uses the cgroups")


@IN_PLACE
@pytest.mark.long
@pytest.mark.usefixtures("pod_cgroups")
def test_a_resize_changes_no_record_of_chips(node: PluginNode) -> None:
    first = [sized("sidecar", 1, restartPolicy="Always"), sized("init", 2, "100m", ONCE)]
    place(node, "pod", (4, 5, 6), initContainers=first, containers=[sized("main", 2)], restartPolicy="Always")
    before = slices(node, "pod", 4, 5, 6)
    with pytest.raises(HTTPError, match="only cpu and memory"):
        resize(node, "pod", **{RESOURCE: "1"})
    resize(node, "pod", cpu="150m")
    resize(node, "pod", "initContainers", "sidecar", cpu="150m")
    resize(node, "pod", memory="96Mi")

    def done() -> bool:
        found = node.pod("pod")
        allocated = [each["allocatedResources"] for each in found["status"]["containerStatuses"]]
        return allocated[0]["memory"] == "96Mi" and restarts(found) == [1]

    node.wait_until(done, "the kubelet has resized the pod")
    node.plugin.process.kill()
    node.start_plugin()
    assert slices(node, "pod", 4, 5, 6) == before
    node.place("next", 0, 7)
    node.check("next", 0, 7)


@pytest.mark.skipif(MINOR < 34, reason="pods have resources of their own from 1.34 on")
@pytest.mark.long
@pytest.mark.usefixtures("pod_cgroups")
def test_chips_are_requested_by_containers_whatever_the_whole_pod_has(node: PluginNode) -> None:
    whole = {"limits": {"cpu": "1", "memory": "256Mi"}}
    place(node, "pod", (4, 5, 6), containers=[container("one", 1), container("two", 2)], resources=whole)
    assert {name: ids.bit_count() for name, ids in slices(node, "pod", 4, 5, 6).items()} == {"one": 1, "two": 2}
    with pytest.raises(HTTPError, match=f'spec.resources.*Unsupported value: ."{RESOURCE}'):
        node.create("chips", resources={"limits": {RESOURCE: "1"}})

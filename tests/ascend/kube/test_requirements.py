"""Which differences of pods a scheduler may heed: they are in a number that is made while a pod is read."""

import copy
import json
from collections.abc import Callable
from typing import Any, Final

import pytest

from ascend.chips import RESOURCE
from ascend.kube.objects import Pod, read_object

Spec = dict[str, Any]

SPEC: Final[Spec] = {
    "containers": [{"name": "a", "image": "x", "resources": {"limits": {RESOURCE: "8"}, "requests": {"cpu": "1"}}}],
    "initContainers": [{"name": "i", "resources": {}}],
    "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
    "nodeSelector": {"pool": "a"},
}


def requirements(spec: Spec) -> int:
    body = {"metadata": {"name": "a", "uid": "u"}, "spec": spec}
    return read_object(json.dumps(body).encode(), Pod).spec.requirements


def changed(change: Callable[[Spec], object]) -> int:
    spec = copy.deepcopy(SPEC)
    change(spec)
    return requirements(spec)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["containers"][0]["resources"]["requests"].update(cpu="1000"),
        lambda spec: spec["containers"][0]["resources"]["limits"].update({"vendor.com/nic": "1"}),
        lambda spec: spec["containers"][0].update(ports=[{"containerPort": 80, "hostPort": 80}]),
        lambda spec: spec["initContainers"][0]["resources"].update(requests={"memory": "1Ti"}),
        lambda spec: spec["initContainers"][0].update(restartPolicy="Always"),
        lambda spec: spec["volumes"][0]["persistentVolumeClaim"].update(claimName="missing"),
        lambda spec: spec["volumes"].append({"name": "e", "ephemeral": {"volumeClaimTemplate": {}}}),
        lambda spec: spec["nodeSelector"].update(pool="b"),
        lambda spec: spec.update(affinity={"nodeAffinity": {}}),
        lambda spec: spec.update(tolerations=[{"operator": "Exists"}]),
        lambda spec: spec.update(topologySpreadConstraints=[{"maxSkew": 1}]),
        lambda spec: spec.update(overhead={"cpu": "1"}),
        lambda spec: spec.update(resources={"requests": {"cpu": "1"}}),
        lambda spec: spec.update(resourceClaims=[{"name": "nic", "resourceClaimName": "nic"}]),
        lambda spec: spec.update(runtimeClassName="ascend"),
        lambda spec: spec.update(schedulerName="other"),
        lambda spec: spec.update(priority=5),
        lambda spec: spec.update(preemptionPolicy="Never"),
        lambda spec: spec.update(hostNetwork=True),
        lambda spec: spec.update(aFieldOfTheFuture={}),
    ],
)
def test_what_a_scheduler_reads_makes_a_difference(change: Callable[[Spec], object]) -> None:
    assert changed(change) != requirements(SPEC)


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec["containers"][0].update(name="master", image="y", env=[{"name": "RANK", "value": "0"}]),
        lambda spec: spec["containers"][0].update(ports=[{"containerPort": 23456, "name": "pytorchjob-port"}]),
        lambda spec: spec["volumes"].append({"name": "kube-api-access-x7k2p", "projected": {"sources": []}}),
        lambda spec: spec.update(hostname="train-0", subdomain="train", schedulingGates=[{"name": "g"}]),
    ],
)
def test_what_no_scheduler_reads_makes_none(change: Callable[[Spec], object]) -> None:
    assert changed(change) == requirements(SPEC)


def test_pods_that_no_gang_waits_for_have_none() -> None:
    assert changed(lambda spec: spec.update(nodeName="n1")) == 0
    assert changed(lambda spec: spec["containers"][0].update(resources={})) == 0


@pytest.mark.parametrize("ports", ["none", [None], {}])
def test_fields_of_other_types_than_kubernetes_has_are_no_error(ports: object) -> None:
    assert changed(lambda spec: spec["containers"][0].update(ports=ports)) != requirements(SPEC)


@pytest.mark.parametrize("key", ["app", "job-name"])
def test_a_label_makes_a_difference_if_the_terms_of_the_pod_name_it(key: str) -> None:
    term = {"labelSelector": {"matchLabels": {"app": "train"}}, "topologyKey": "kubernetes.io/hostname"}
    anti = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    body = {"metadata": {"labels": {"app": "train", "job-name": "a"}}, "spec": {**SPEC, "affinity": anti}}
    other = copy.deepcopy(body)
    other["metadata"]["labels"][key] = "b"
    one, two = (read_object(json.dumps(each).encode(), Pod).spec.requirements for each in (body, other))
    assert (one != two) == (key == "app")

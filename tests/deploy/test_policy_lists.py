"""The lists in the chart's admission policies are those of the programs."""

import re

import pytest

from ascend.annotations import OURS, WRITERS, Writer
from ascend.kube.containers import GRANTED, RESERVED, field_path
from ascend.vnpus import RESOURCES
from tests.deploy import helm

pytestmark = [pytest.mark.real, pytest.mark.usefixtures("built_helm"), pytest.mark.timeout(600)]


def strings_of(policy: str) -> dict[str, list[str]]:
    """The strings in each variable of a policy."""
    (found,) = (
        item
        for item in helm.render()
        if item["kind"] == "ValidatingAdmissionPolicy"
        and item["metadata"]["name"] == f"ascend-affinity-allocator-{policy}"
    )
    return {each["name"]: re.findall(r'"([^"]*)"', each["expression"]) for each in found["spec"]["variables"]}


def test_the_policy_of_annotations_has_the_writers_of_the_programs() -> None:
    found = strings_of("annotations")
    protected = {writer: {key for key, by in WRITERS.items() if by is writer} for writer in Writer}
    assert set(found["ours"]) == protected[Writer.PROGRAMS] == OURS
    assert set(found["others"]) == protected[Writer.OTHERS]
    assert set(found["created"]) == {"UPDATE"} | protected[Writer.CREATOR]
    assert found["vnpu"] == list(RESOURCES)


def test_the_policies_of_variables_have_the_lists_of_the_programs() -> None:
    found = strings_of("visible-devices")
    assert found["reserved"] == strings_of("visible-devices-from")["reserved"] == list(RESERVED)
    assert found["granted"] == list(map(field_path, GRANTED))

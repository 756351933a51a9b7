"""Listing a cluster's objects, whichever kinds of pod groups it serves."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ascend.errors import ApiError
from ascend.kube.client import KubeClient
from npuctl.reading.listing import list_objects
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, VOLCANO_POD_GROUPS, ServedResource
from tests.ascend.kube.objects import write_kubeconfig
from tests.npuctl.manifests import pod_group

QUOTAS = ServedResource("scheduling.x-k8s.io", "v1alpha1", "elasticquotas", "elasticquota", "ElasticQuota")
"""A kind of the same API group as the pod groups of the coscheduling plugin."""

GROUPS = f"PodGroup.{VOLCANO_POD_GROUPS.api_version}"


@pytest.fixture(params=[(), (QUOTAS,)], ids=["no such group", "no such kind"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    """A server with the pod groups of Volcano, but not those of the coscheduling plugin."""
    resources = (*SERVED, VOLCANO_POD_GROUPS, *request.param)
    async with ApiServer(tokens={"secret": "reader"}, resources=resources) as running:
        await running.create(pod_group("train", 2))
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server, "secret"))) as connected:
        yield connected


async def test_a_kind_that_is_not_served_is_no_error_without_rights(server: ApiServer, client: KubeClient) -> None:
    # A real server checks rights first.
    server.fail_next("GET", "scheduling.x-k8s.io/v1alpha1/podgroups", 403)
    objects = await list_objects(client)
    assert [each.name for each in objects.by_kind[GROUPS]] == ["train"]
    assert "PodGroup.scheduling.x-k8s.io/v1alpha1" not in objects.by_kind


async def test_a_kind_that_is_served_and_forbidden_is_an_error(client: KubeClient, server: ApiServer) -> None:
    server.fail_next("GET", "scheduling.volcano.sh/v1beta1/podgroups", 403)
    with pytest.raises(ApiError) as refused:
        await list_objects(client)
    assert refused.value.status == 403


async def test_without_discovery_the_first_error_counts(client: KubeClient, server: ApiServer) -> None:
    server.fail_next("GET", "scheduling.x-k8s.io/v1alpha1/podgroups", 403)
    server.fail_next("GET", "scheduling.x-k8s.io/v1alpha1$", 401, times=2)
    with pytest.raises(ApiError) as refused:
        await list_objects(client)
    assert refused.value.status == 403

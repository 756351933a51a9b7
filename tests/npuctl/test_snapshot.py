"""A cluster is read with the rights that the documents ask for, whichever kinds it has."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from allocator.rules.job import VOLCANO
from ascend.errors import ApiError
from ascend.kube.client import KubeClient
from npuctl.snapshot import Snapshot
from sandbox.apiserver import ApiServer
from sandbox.apiserver.resources import SERVED, VOLCANO_POD_GROUPS, Resource
from tests.ascend.kube.objects import write_kubeconfig
from tests.npuctl.manifests import pod_group

QUOTAS = Resource("scheduling.x-k8s.io", "v1alpha1", "elasticquotas", "elasticquota", "ElasticQuota")
"""Of the same group as the pod groups of the coscheduling plugin, and there without them."""


@pytest.fixture(params=[(), (QUOTAS,)], ids=["no such group", "no such kind"])
async def server(request: pytest.FixtureRequest) -> AsyncIterator[ApiServer]:
    """Has the pod groups of Volcano, and not those of the coscheduling plugin."""
    resources = (*SERVED, VOLCANO_POD_GROUPS, *request.param)
    async with ApiServer(tokens={"secret": "reader"}, resources=resources) as running:
        await running.create(pod_group("train", 2))
        yield running


@pytest.fixture
async def client(server: ApiServer, tmp_path: Path) -> AsyncIterator[KubeClient]:
    async with await KubeClient.connect(str(write_kubeconfig(tmp_path, server, "secret"))) as connected:
        yield connected


async def test_a_kind_that_is_not_there_is_none_also_to_who_has_no_right_to_list_it(
    server: ApiServer, client: KubeClient
) -> None:
    # A real server looks at rights first.
    server.fail_next("GET", "scheduling.x-k8s.io/v1alpha1/podgroups", 403)
    snapshot = await Snapshot.fetch(client)
    assert {kind: [each.name for each in groups] for kind, groups in snapshot.groups.items()} == {VOLCANO: ["train"]}


async def test_a_kind_that_is_there_and_may_not_be_listed_is_an_error(client: KubeClient, server: ApiServer) -> None:
    server.fail_next("GET", "scheduling.volcano.sh/v1beta1/podgroups", 403)
    with pytest.raises(ApiError) as refused:
        await Snapshot.fetch(client)
    assert refused.value.status == 403


async def test_where_discovery_is_closed_too_the_first_refusal_counts(client: KubeClient, server: ApiServer) -> None:
    server.fail_next("GET", "scheduling.x-k8s.io/v1alpha1/podgroups", 403)
    server.fail_next("GET", "scheduling.x-k8s.io/v1alpha1$", 401, times=2)
    with pytest.raises(ApiError) as refused:
        await Snapshot.fetch(client)
    assert refused.value.status == 403

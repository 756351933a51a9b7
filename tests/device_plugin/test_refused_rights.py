"""What the API server refuses for want of a right is told by ``/readyz`` and on the Node until the right is there."""

from pathlib import Path

import pytest

from ascend.errors import ApiError
from device_plugin.publish import rights
from device_plugin.publish.rights import RIGHTS, RefusedRights, Right
from tests.device_plugin.test_probes import answers
from tests.device_plugin.test_readiness import becomes, often  # noqa: F401 - a fixture
from tests.device_plugin.whole import whole_node


def refusal(right: Right, namespace: str = "") -> ApiError:
    """What the API server says of a request without a right."""
    name = f"{right.resource}/{right.subresource}" if right.subresource else right.resource
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    user = "system:serviceaccount:ascend:device-plugin"
    of_what = f'cannot {right.verb} resource "{name}" in API group "{right.group}" {where}'
    return ApiError(f'{right.resource} "x" is forbidden: User "{user}" {of_what}', status=403)


@pytest.mark.parametrize("right", RIGHTS, ids=str)
def test_each_right_that_is_refused_is_named_with_its_purpose(right: Right) -> None:
    refused = RefusedRights()
    refused.note(refusal(right, right.namespace))
    assert refused.problem == f"the API server refuses to {right}, for: {right.why}"
    refused.note(refusal(right, right.namespace))
    assert refused.problem == f"the API server refuses to {right}, for: {right.why}"


@pytest.mark.parametrize(
    "message",
    [
        "",
        'pods "x" is forbidden: ValidatingAdmissionPolicy "p" with binding "p" denied request: not yours',
        'pods "x" is forbidden: unable to create new content in namespace gone because it is being terminated',
        'secrets is forbidden: User "u" cannot list resource "secrets" in API group "" at the cluster scope',
        'configmaps "x" is forbidden: User "u" cannot get resource "configmaps" in API group "" in the namespace "a"',
    ],
)
def test_what_is_denied_for_another_reason_is_no_missing_right(message: str) -> None:
    refused = RefusedRights()
    refused.note(ApiError(message, status=403))
    assert refused.problem is None


async def test_a_right_that_is_refused_is_told_until_it_is_granted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rights, "ASK_S", 0.02)
    right = next(right for right in RIGHTS if str(right) == "list nodes")
    async with whole_node(folder) as whole:
        server = whole.cluster.server
        server.denied.add(("list", "nodes"))
        server.fail_next("GET", r"/nodes\?", 403, message=refusal(right).message)
        async with whole.plugin() as plugin:
            sentence = f"rights: the API server refuses to list nodes, for: {right.why}"
            await answers(plugin, "/readyz", 503, f"[-] {sentence}")
            assert (await becomes(whole.client, "True", "Rights"))["message"] == sentence
            await answers(plugin, "/standbyz", 200, "")
            server.denied.clear()
            await answers(plugin, "/readyz", 200, "")

"""The check of rights: whether the accounts of both programs have the rights that all settings need."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from allocator.state.kinds import KINDS
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject, Resource
from device_plugin.publish.rights import KUBELET_PODS, Right, is_granted, rights
from npuctl.doctor.finding import Finding, ok, problem

ALLOCATOR: Final = "allocator"


def _group(resource: Resource[Any]) -> str:
    return resource.api_version.rpartition("/")[0]


_WATCHED: Final = (
    Right(
        verb, kind.resource.plural, f"{kind.name} of the cluster", _group(kind.resource), namespace=kind.namespace("")
    )
    for kind in KINDS
    if not kind.is_optional and kind.scope != "node-health"
    for verb in ("list", "watch")
)
ALLOCATORS: Final = (
    *{str(right): right for right in _WATCHED}.values(),
    Right("get", "pods", "whether a Binding whose answer was lost was made"),
    Right("patch", "pods", "a pending pod is requeued"),
    Right("create", "pods", "node and chips of a pod, in one step", subresource="binding"),
    Right("patch", "pods", "the node that is nominated for a pod", subresource="status"),
    Right("create", "events", "why a pod waits", "events.k8s.io"),
    Right("patch", "events", "repetitions of an Event", "events.k8s.io"),
)
"""The rights that the allocator needs with any settings."""


class Account(NamedTuple):
    """The account of a program: the program and its authenticated user."""

    program: str
    user: str


class Denied(NamedTuple):
    """A right that an account needs and has not; in words if one of several is enough."""

    account: Account
    right: str
    why: str


async def read_denied(client: KubeClient, accounts: Iterable[Account]) -> tuple[Denied, ...]:
    """Ask an API server which rights accounts lack.

    Raises:
        ApiError: the API server refused to say it.
        Unreachable: it did not answer.
    """
    found = await asyncio.gather(*(_denied(client, account) for account in accounts))
    return tuple(denied for some in found for denied in some)


async def _denied(client: KubeClient, account: Account) -> list[Denied]:
    may = partial(is_granted, client, subject=_subject(account.user))
    wanted = [(right,) for right in (ALLOCATORS if account.program == ALLOCATOR else rights(job_files=False))]
    choices: list[Sequence[Right]] = [*wanted, *([] if account.program == ALLOCATOR else [KUBELET_PODS])]
    found = await asyncio.gather(*(asyncio.gather(*map(may, choice)) for choice in choices))
    lacking = [choice for choice, granted in zip(choices, found, strict=True) if not any(granted)]
    return [Denied(account, " or ".join(map(str, choice)), choice[0].why) for choice in lacking]


def _subject(user: str) -> JsonObject:
    """A service account, with the groups that the API server gives it."""
    _, _, where, _ = user.split(":")
    every = "system:serviceaccounts"
    return {"user": user, "groups": [every, f"{every}:{where}", "system:authenticated"]}


def check_rights(denied: Sequence[Denied] | None) -> Iterator[Finding]:
    """Say which rights the programs lack; None if that is not known."""
    if denied is None:
        return
    for account, right, why in denied:
        sentence = f"the {account.program} ({account.user}) lacks the right to {right}, for: {why}"
        yield problem(sentence, "apply the chart's ClusterRoles and Roles again, and their bindings")
    if not denied:
        yield ok("the accounts of the programs have those that they need with any settings")

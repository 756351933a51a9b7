"""The plugin's rights at the API server, with their purposes, and the refused ones.

The chart grants no more. Most of what the plugin does there is tried again and again, and the rest goes on without it:
only the log would tell of a missing right.
"""

import asyncio
import re
from dataclasses import dataclass
from typing import Final

import structlog

from ascend.deviceinfo import NAMESPACE
from ascend.errors import ApiError, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import JsonObject


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource.

    Attributes:
        verb: as in RBAC.
        resource: plural.
        why: what the plugin uses it for.
        group: the API group; empty for the core group.
        subresource: empty for none.
        namespace: empty for all.
        setting: the setting that needs it; empty if it is always needed.
    """

    verb: str
    resource: str
    why: str
    group: str = ""
    subresource: str = ""
    namespace: str = ""
    setting: str = ""

    def __str__(self) -> str:
        name = f"{self.resource}/{self.subresource}" if self.subresource else self.resource
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.verb} {name}{f'.{self.group}' if self.group else ''}{where}"


JOB_FILES = "job_files: true"

RIGHTS = (
    Right("get", "pods", "after a refused claim, check whether the pod was recreated"),
    Right("list", "pods", "the node's pods, at the start and if the kubelet admits one the watch has not shown"),
    Right("watch", "pods", "the chips written on the node's pods"),
    Right("patch", "pods", "the claim: which chips a pod was given"),
    Right("get", "nodes", "this node's address and labels, and what earlier plugins have left on it"),
    Right("list", "nodes", "this node's object, which may be made again without our annotations and labels"),
    Right("watch", "nodes", "changes of this node's object"),
    Right("patch", "nodes", "annotations and labels: which chips the node has; the taint of taint_from"),
    Right("patch", "nodes", "conditions of this node: the health of its chips", subresource="status"),
    Right("get", "nodes", "the kubelet's count of registrations: another plugin's", subresource="metrics"),
    Right("get", "configmaps", "an earlier plugin's report, and the site's fault rules", namespace=NAMESPACE),
    Right("list", "configmaps", "operators' edits of the report and of the fault rules", namespace=NAMESPACE),
    Right("watch", "configmaps", "operators' edits of the report and of the fault rules", namespace=NAMESPACE),
    Right("create", "configmaps", "the node's first report", namespace=NAMESPACE),
    Right("patch", "configmaps", "every later report", namespace=NAMESPACE),
    Right("create", "events", "changes of health, and pods whose chips fail or do not match", group="events.k8s.io"),
    Right("patch", "events", "repetitions of an Event: counted, not repeated", group="events.k8s.io"),
    *(
        Right(verb, "configmaps", "reset-config-<job> and data-trace-<job> of the jobs on the node", setting=JOB_FILES)
        for verb in ("list", "watch")
    ),
)
"""All rights with any settings, except ``KUBELET_PODS``."""

KUBELET_PODS = (
    Right("get", "nodes", "the kubelet's own list of pods", subresource="pods"),
    Right("get", "nodes", "the kubelet's own list of pods, of kubelets before 1.33", subresource="proxy"),
)
"""One of these two is enough."""


def rights(*, job_files: bool) -> tuple[Right, ...]:
    """Return the rights the plugin needs with these settings, except ``KUBELET_PODS``."""
    return tuple(right for right in RIGHTS if job_files or right.setting != JOB_FILES)


async def is_granted(client: KubeClient, right: Right, *, subject: JsonObject | None = None) -> bool:
    """Whether an API server grants a right to a client, or to a subject.

    Raises:
        ApiError: the API server refused to say it.
        Unreachable: it did not answer.
    """
    return await client.may(
        right.verb,
        right.resource,
        group=right.group,
        subresource=right.subresource,
        namespace=right.namespace,
        subject=subject,
    )


log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

ASK_S: Final = 60.0
"""How often the API server is asked for the rights that are lacking, by each node."""

_REFUSAL: Final = re.compile(
    r'cannot ([a-z]+) resource "([a-z]+)(?:/([a-z]+))?" in API group "([a-z0-9.]*)"(?: in the namespace "([^"]+)")?'
)
"""What an API server says of a request that no authorizer allows; what admission denies has other words."""


class RefusedRights:
    """The rights that this plugin has needed and lacks."""

    def __init__(self) -> None:
        self._lacking: set[Right] = set()

    @property
    def problem(self) -> str | None:
        """Which rights are lacking, a sentence; None if none is known to be."""
        named = "; ".join(sorted(f"{right}, for: {right.why}" for right in self._lacking))
        return f"the API server refuses to {named}" if named else None

    def note(self, error: ApiError) -> None:
        """Take over an answer that refuses a request."""
        if (found := _REFUSAL.search(error.message)) is None:
            return
        verb, resource, subresource, group, namespace = found.groups(default="")
        for right in RIGHTS:
            refused = (right.verb, right.resource, right.subresource, right.group)
            if refused == (verb, resource, subresource, group) and right.namespace in {"", namespace}:
                self._lacking.add(right)
                return

    async def follow(self, client: KubeClient) -> None:
        """Forget each right that is granted meanwhile, until cancelled."""
        while True:
            await asyncio.sleep(ASK_S)
            for right in tuple(self._lacking):
                try:
                    if await is_granted(client, right):
                        self._lacking.discard(right)
                except (ApiError, Unreachable) as error:
                    log.info("can't ask for a right", right=str(right), error=str(error))

"""A binder on a scripted API server."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from allocator.binding.annotations import Stamper
from allocator.binding.barrier import Barrier
from allocator.binding.binder import Binder
from allocator.binding.binding import Assignment, BindingLease, PodRef
from allocator.binding.known_pods import FOR_SCHEDULERS, KnownPods
from allocator.binding.reserving import Reserver
from allocator.state.reservation import Stage
from ascend.errors import AscendError, Conflict, NotFound, Refusal, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import Pod, Resource
from ascend.reasons import Reason
from tests.allocator.builders import World, node, pod

NOW_NS = 1_795_000_000_000_000_000
HOLD_S = 50.0
REF = PodRef("default", "a", "uid-a")


class Server:
    """The two calls of the API server that a binder makes, with errors on demand."""

    def __init__(self, *pods: Pod) -> None:
        self.pods = {each.name: each for each in pods}
        self.bindings: list[dict[str, Any]] = []
        self.before: list[AscendError] = []
        self.after: list[AscendError] = []
        self.unreadable: list[AscendError] = []
        self.reads = 0
        self.gate: asyncio.Event | None = None
        self.called = asyncio.Event()

    async def bind(
        self, *, namespace: str, name: str, uid: str, node: str, annotations: Mapping[str, str], timeout_s: float
    ) -> None:
        self.called.set()
        self.bindings.append({"name": f"{namespace}/{name}", "node": node, **annotations})
        if self.gate is not None:
            try:
                async with asyncio.timeout(timeout_s):
                    await self.gate.wait()
            except TimeoutError:
                raise Unreachable("timed out") from None
        if self.before:
            raise self.before.pop(0)
        found = self.pods.get(name)
        if found is None:
            raise NotFound("no such pod", status=404)
        if found.uid != uid or found.spec.node_name:
            raise Conflict("uid or node", status=409)
        self.pods[name] = pod(name, found.spec.containers[0].chips, node=node, annotations=annotations)
        if self.after:
            raise self.after.pop(0)

    async def get(self, resource: Resource[Pod], name: str, namespace: str = "", *, timeout_s: float = 15.0) -> Pod:
        assert timeout_s > 0
        assert resource.plural == "pods"
        assert namespace == "default"
        self.reads += 1
        if self.unreadable:
            raise self.unreadable.pop(0)
        if name not in self.pods:
            raise NotFound("no such pod", status=404)
        return self.pods[name]


class BinderWorld:
    """A binder in a world of two nodes."""

    def __init__(
        self, *pods: Pod, server: Server | None = None, earmark_share: float = 0.0, hold_s: float = HOLD_S
    ) -> None:
        self.world = World(earmark_share=earmark_share)
        self.world.cluster.plain.schedulers = ["default-scheduler"]
        self.world.add(node("n1"), node("n2"), *pods)
        self.server = server or Server(*pods)
        self.outcomes: list[Assignment | AscendError] = []
        self.barrier = Barrier(
            self.world.engine,
            monotonic=lambda: self.world.now_s,
            hold_s=hold_s,
        )
        stamper = Stamper(self.world.cluster, self.world.ledger, lambda: NOW_NS)
        self.reserver = Reserver(self.world.engine, stamper)
        self.pods = KnownPods(
            cast("KubeClient", self.server),
            self.world.cluster,
            schedulers=["default-scheduler"],
            limit=FOR_SCHEDULERS,
            monotonic=lambda: self.world.now_s,
        )
        self.binder = Binder(
            client=cast("KubeClient", self.server),
            pods=self.pods,
            engine=self.world.engine,
            barrier=self.barrier,
            stamper=stamper,
            monotonic=lambda: self.world.now_s,
            outcome=lambda _ref, _node, result, _duration_s: self.outcomes.append(result),
            lease=self._lease,
        )
        self.leads = True

    def _lease(self, wanted_s: float) -> BindingLease:
        if not self.leads:
            raise Refusal(Reason.NOT_LEADER, "another allocator leads")
        return BindingLease(wanted_s)

    def stage(self, uid: str = "uid-a") -> Stage | None:
        held = self.world.ledger.get(uid)
        return None if held is None else held.stage

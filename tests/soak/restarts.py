"""Kubelet and plugin are killed in every state of registration and admission, while pods run."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ascend.annotations import CLAIMED, PREDICATE_TIME
from ascend.chips import RESOURCE, chip_ids
from protos.k8s.deviceplugin.v1beta1 import deviceplugin_pb2 as pb
from sandbox.apiserver.resources import ServedResource
from sandbox.kubelet.endpoint import PluginEndpoint
from sandbox.kubelet.process import KubeletProcess
from tests.soak.lane import Lane, Mismatch, visible

REGISTERING: Final = ("starting", "Register called", "options read", "stream not open yet", "first list sent")
ADMITTING: Final = ("GetPreferredAllocation", "Allocate", "Allocate answered", "claim being written")
OTHER: Final = ("idle", "a pod is being deleted")
STATES: Final = (*REGISTERING, *ADMITTING, *OTHER)
VICTIMS: Final = ("kubelet", "plugin", "both")

_RUNNING: Final = 3
"""The number of pods that run during the restarts."""
_REACHED_S: Final = 10.0


@dataclass(slots=True)
class Tally:
    """Counts of what was done.

    Attributes:
        kubelets: restarts of the kubelet.
        plugins: kills of the plugin.
        killed_at: kills by state and victim.
        refused: pods under admission that the kubelet failed because its plugin died.
        kept: running pods that had their chips after a restart.
    """

    kubelets: int = 0
    plugins: int = 0
    killed_at: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: int = 0
    kept: int = 0


class Breakpoint:
    """Stops the program that reaches a state, until it is released or killed."""

    def __init__(self) -> None:
        self._state = ""
        self._hit = asyncio.Event()
        self._open = asyncio.Event()

    def set(self, state: str) -> None:
        """Stop the next program in this state."""
        self._state = state
        self._hit, self._open = asyncio.Event(), asyncio.Event()

    def release(self) -> None:
        """Release the stopped program and stop no other."""
        self._state = ""
        self._open.set()

    async def pass_by(self, state: str) -> None:
        """Stop here if the breakpoint is set for this state."""
        if state == self._state:
            self._state = ""
            self._hit.set()
            await self._open.wait()

    async def reached(self) -> None:
        """Wait until a program is stopped.

        Raises:
            Mismatch: none was in time.
        """
        state = self._state
        try:
            async with asyncio.timeout(_REACHED_S):
                await self._hit.wait()
        except TimeoutError:
            raise Mismatch(f"the state was not reached: {state}") from None


class Restarts:
    """Kills on one lane.

    Args:
        lane: the node.
        tally: the counts to update.
    """

    def __init__(self, lane: Lane, tally: Tally) -> None:
        self._lane = lane
        self._tally = tally
        self._breakpoint = Breakpoint()
        self._number = 0
        self.kubelets = 0
        lane.cluster.server.admission.append(self._on_write)
        self._set_breakpoints(lane.node.kubelet._running)
        if (endpoint := lane.node.kubelet._running.plugins.endpoint(RESOURCE)) is not None:
            self._watch(endpoint)
        self._make = lane.node.kubelet._new_process
        lane.node.kubelet._new_process = self._new_process  # type: ignore[method-assign]  # of this instance only

    async def one(self, state: str, victim: str) -> None:
        """Kill a victim in a state, restart it, and check all records.

        Raises:
            Mismatch: the records do not agree.
        """
        lane = self._lane
        while len(lane.granted) < _RUNNING and lane.free:
            lane.check(await lane.settled(await self._place()))
        before = [pod for name in lane.granted if (pod := lane.find(name)) is not None]
        containers = {pod.uid: lane.container(pod) for pod in before}
        arriving = await self._bring_about(state)
        await self._kill(victim)
        self._breakpoint.release()
        await lane.until_registered()
        for pod in before:
            if pod.name == arriving or pod.name not in lane.granted:
                continue  # deleted meanwhile; its name may have been reused
            settled = await lane.settled(pod.name)
            container, known = lane.container(settled), containers[pod.uid]
            if container is None or known is None or (container.id, visible(container)) != (known.id, visible(known)):
                raise Mismatch(f"a running pod lost its container or its chips: {lane.describe(pod.name)}")
            lane.check(settled)
            self._tally.kept += 1
        if arriving is not None:
            settled = await lane.settled(arriving)
            if settled.status.phase == "Failed":
                self._tally.refused += 1
                claimed = settled.metadata.annotations[PREDICATE_TIME] == str(CLAIMED)
                if claimed and state == "GetPreferredAllocation" and victim == "plugin":
                    raise Mismatch(f"a refused pod has a claim: {lane.describe(arriving)}")
                await lane.delete(arriving)
            else:
                lane.check(settled)
        lane.check_nothing_is_held_twice()
        self._tally.killed_at[state, victim] += 1

    async def _bring_about(self, state: str) -> str | None:
        """Wait until the state is reached; return the pod under admission, if there is one."""
        lane = self._lane
        arriving = None
        self._breakpoint.set(state)
        if state in REGISTERING:
            await self._restart_kubelet()
            if state == "starting":
                await asyncio.sleep(lane.rng.uniform(0, 0.3))
                return None
        elif state in ADMITTING:
            if lane.rng.random() < 0.5 or not lane.free:
                await lane.delete(lane.rng.choice(list(lane.granted)))
            arriving = await self._place()
        elif state == "a pod is being deleted":
            name = lane.rng.choice(list(lane.granted))
            await lane.delete(name)
            return None
        else:
            return None
        try:
            await self._breakpoint.reached()
        except Mismatch as error:
            raise Mismatch(f"{error}; {lane.describe(arriving) if arriving else ''}") from error
        return arriving

    async def _place(self) -> str:
        lane = self._lane
        self._number += 1
        name = f"pod-{self._number % 5}-{self._number}" if self._number % 3 else f"again-{self._number % 2}"
        if name in lane.granted:
            name = f"pod-{self._number}"
        free = chip_ids(lane.free)
        size = lane.rng.choice([each for each in (1, 1, 2, 2, 4) if each <= len(free)])
        await lane.place(name, tuple(lane.rng.sample(free, size)))
        return name

    async def _kill(self, victim: str) -> None:
        both = victim == "both"
        if victim == "plugin" or both:
            self._tally.plugins += 1
            await self._lane.plugin.kill()
            self._breakpoint.release()
            await self._lane.until_unregistered()
        if victim == "kubelet" or both:
            if both and self._lane.rng.random() < 0.5:
                await self._lane.plugin.start()
            await self._restart_kubelet()
        if not self._lane.plugin.alive:
            await self._lane.plugin.start()

    async def _restart_kubelet(self) -> None:
        self.kubelets += 1
        self._tally.kubelets += 1
        await self._lane.restart_kubelet()

    # States.

    async def _on_write(self, operation: str, resource: ServedResource, subresource: str, document: Any) -> Any:
        if (operation, resource.plural, subresource) == ("UPDATE", "pods", "") and document["metadata"].get(
            "annotations", {}
        ).get(PREDICATE_TIME) == str(CLAIMED):
            await self._breakpoint.pass_by("claim being written")
        return document

    def _new_process(self) -> KubeletProcess:
        """Make the kubelet that starts next; the plugin may register before its start returns."""
        process = self._make()
        self._set_breakpoints(process)
        return process

    def _set_breakpoints(self, process: KubeletProcess) -> None:
        """Set the breakpoints in the parts of a kubelet."""
        plugins = process.plugins
        connect, run = plugins._connect, plugins._run

        async def connected(*arguments: Any) -> None:
            await self._breakpoint.pass_by("Register called")
            await connect(*arguments)
            await self._breakpoint.pass_by("options read")

        async def watched(endpoint: PluginEndpoint) -> None:
            await self._breakpoint.pass_by("stream not open yet")
            self._watch(endpoint)
            await run(endpoint)

        plugins._connect = connected  # type: ignore[method-assign,assignment]  # of this instance only
        plugins._run = watched  # type: ignore[method-assign]  # of this instance only

    def _watch(self, endpoint: PluginEndpoint) -> None:
        watch, prefer, allocate = endpoint.watch, endpoint.prefer, endpoint.allocate

        async def first_list() -> AsyncIterator[pb.ListAndWatchResponse]:
            async for message in watch():
                await self._breakpoint.pass_by("first list sent")
                yield message

        async def preferred(*arguments: Any) -> frozenset[str]:
            answer: frozenset[str] = await self._during("GetPreferredAllocation", prefer, *arguments)
            return answer

        async def allocated(*arguments: Any) -> pb.ContainerAllocateResponse:
            answer: pb.ContainerAllocateResponse = await self._during("Allocate", allocate, *arguments)
            await self._breakpoint.pass_by("Allocate answered")
            return answer

        endpoint.watch = first_list  # type: ignore[method-assign]  # of this instance only
        endpoint.prefer = preferred  # type: ignore[method-assign,assignment]  # of this instance only
        endpoint.allocate = allocated  # type: ignore[method-assign,assignment]  # of this instance only

    async def _during(self, state: str, call: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        """Make a call, and stop at the breakpoint while it is in progress."""
        calling = asyncio.ensure_future(call(*arguments))
        try:
            await asyncio.sleep(self._lane.rng.uniform(0, 0.002))
            await self._breakpoint.pass_by(state)
            return await calling
        finally:
            calling.cancel()
            await asyncio.gather(calling, return_exceptions=True)


async def restart_many(lane: Lane, kubelets: int, tally: Tally, progress: Callable[[int], None]) -> None:
    """Restart the kubelet ``kubelets`` times, and the plugin as well, in all states and with all victims.

    Raises:
        Mismatch: the records do not agree; the text names victim and state.
    """
    restarts = Restarts(lane, tally)
    combinations = [(state, victim) for state in STATES for victim in VICTIMS]
    done = 0
    while done < kubelets:
        lane.rng.shuffle(combinations)
        for state, victim in combinations:
            before = restarts.kubelets
            try:
                await restarts.one(state, victim)
            except Mismatch as error:
                raise Mismatch(f"killed the {victim} at {state!r} (kubelet restart {done}): {error}") from error
            finally:
                done += restarts.kubelets - before
            progress(restarts.kubelets - before)
            if done >= kubelets:
                break

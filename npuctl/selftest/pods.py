"""Starts pods with chips on a node, in order, and compares all accounts of the pods' chips."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from msgspec import Struct, structs

from ascend.annotations import ALLOCATED, REAL
from ascend.chips import RESOURCE, ChipSet, chip_ids, chip_set, parse_names
from ascend.deviceinfo import NAMESPACE, config_map_name, decode_report
from ascend.errors import ApiError, AscendError, NotFound, Unreachable
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS

T = TypeVar("T")

SIZES: Final = (1, 2, 4, 8)
PATIENCE_S: Final = 60.0
PAUSE_S: Final = 0.2
HOSTNAME: Final = "kubernetes.io/hostname"
CHARTS_SCHEDULER: Final = {"ascend-affinity.io/scheduler": "ascend-scheduler"}
"""The label of a namespace whose pods with chips get the chart's kube-scheduler, where it is installed."""
_LIFE_S: Final = 300
"""A pod that nobody could delete ends by itself, and gives its chips back."""

_LOOK: Final = 'echo "visible=$ASCEND_VISIBLE_DEVICES"; ls -d /dev/davinci[0-9]* 2>/dev/null; echo end'
_STAY: Final = 'trap "exit 0" TERM; sleep 2147483647 & wait'
_SEEN: Final = re.compile(r"/davinci([0-9]+)$", re.MULTILINE)
_VISIBLE: Final = re.compile(r"^visible=([0-9,]+)$", re.MULTILINE)


class PodBooks(Struct, frozen=True):
    """Who says which chips a pod has.

    Attributes:
        chips: how many it requested.
        agree: whether the books are equal, and those of as many chips as it requested.
        books: physical ids by book: ``kubelet`` (pod resources), ``assigned`` (annotation huawei.com/Ascend910),
            ``given`` (huawei.com/AscendReal), ``report`` (those of ``given`` that the node's report does not list as
            free) and ``container`` (the chips that it sees).
        problem: why the pod did not run, or a book could not be read; empty if neither.
        started_s: seconds from its creation until it ran.
    """

    chips: int
    agree: bool = False
    books: Mapping[str, Sequence[int]] = {}
    problem: str = ""
    started_s: float = 0.0


@dataclass(frozen=True, slots=True)
class PodTrial:
    """Pods on a node.

    Attributes:
        client: the API server.
        node: the node's name.
        host: its label kubernetes.io/hostname, which can differ.
        image: the image of the pods, with a shell.
        scheduler: their scheduler; empty for that of the chart, or where it is not installed the cluster's own.
        held: returns the chips that the kubelet has given a pod, NAMESPACE/NAME.
    """

    client: KubeClient
    node: str
    host: str
    image: str
    scheduler: str
    held: Callable[[str], Awaitable[Sequence[int]]]

    async def run(self) -> list[PodBooks]:
        """Start a pod of each size in a namespace of its own, which is deleted in the end, also after Ctrl-C.

        Raises:
            ApiError: the API server refused.
            Unreachable: it did not answer.
        """
        async with self._namespace() as namespace:
            return [await self._try(namespace, chips) for chips in SIZES]

    @asynccontextmanager
    async def _namespace(self) -> AsyncIterator[str]:
        labels = {} if self.scheduler else CHARTS_SCHEDULER
        metadata = {"generateName": "npu-selftest-", "labels": labels}
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}
        made = json.loads(await self.client.request("POST", "/api/v1/namespaces", body=body))
        name = made["metadata"]["name"]
        try:
            yield name
        finally:
            with suppress(ApiError, Unreachable):  # the end of the namespace ends them, too, but later
                await self.client.request("DELETE", f"/api/v1/namespaces/{name}/pods")
            await self.client.request("DELETE", f"/api/v1/namespaces/{name}")

    async def _try(self, namespace: str, chips: int) -> PodBooks:
        free = await self._free()
        if free.bit_count() < chips:
            return PodBooks(chips, problem=f"not tried: the report lists {free.bit_count()} free chips")
        name, path = f"chips-{chips}", f"/api/v1/namespaces/{namespace}/pods"
        began_s = time.monotonic()
        if await _poll(lambda: self._create(path, self.manifest(name, chips))) is None:
            return PodBooks(chips, problem="the namespace has got no service account")
        try:
            why = await _poll(lambda: self._start_outcome(f"{path}/{name}"))
            started_s = round(time.monotonic() - began_s, 3)
            if why is None or why:
                status = await self._get(f"{path}/{name}", "status")
                found = PodBooks(chips, problem=_why(status), started_s=started_s)
            else:
                found = await self._compare(namespace, name, chips, started_s)
            await self.client.request("DELETE", f"{path}/{name}")
        except NotFound:
            found = PodBooks(chips, problem="somebody else deleted it")
        await _poll(lambda: self._is_gone(f"{path}/{name}", free))  # the next one may need its chips
        return found

    async def _create(self, path: str, manifest: dict[str, Any]) -> bool | None:
        """Create a pod, unless the service account of the new namespace is not there yet."""
        try:
            await self.client.request("POST", path, body=manifest)
        except ApiError as error:
            if "serviceaccount" not in error.message:
                raise
            return None
        return True

    def manifest(self, name: str, chips: int) -> dict[str, Any]:
        """A pod that prints its chips, and stays."""
        container = {
            "name": "main",
            "image": self.image,
            "command": ["sh", "-c", f"{_LOOK}; {_STAY}"],
            "resources": {"limits": {RESOURCE: str(chips)}},
        }
        spec = {
            **({"schedulerName": self.scheduler} if self.scheduler else {}),
            "nodeSelector": {HOSTNAME: self.host},
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Never",
            "activeDeadlineSeconds": _LIFE_S,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}

    async def _start_outcome(self, path: str) -> str | None:
        """Empty once the pod runs, a word once it has failed."""
        return {"Running": "", "Failed": "failed"}.get((await self._get(path, "status")).get("phase", ""))

    async def _is_gone(self, path: str, free: ChipSet) -> bool | None:
        """True once a pod is gone and the report lists as many chips as before as free."""
        try:
            await self._get(path, "metadata")
        except NotFound:
            return (await self._free()).bit_count() >= free.bit_count() or None
        return None

    async def _compare(self, namespace: str, name: str, chips: int, started_s: float) -> PodBooks:
        """Read the books until they agree: some are written a moment after the pod runs."""
        last = PodBooks(chips, started_s=started_s)

        async def compared() -> PodBooks | None:
            nonlocal last
            try:
                books = await self._books(namespace, name)
            except (AscendError, ValueError) as error:
                last = structs.replace(last, problem=f"a book can't be read: {type(error).__name__}")
                return None
            agree = len(books["given"]) == chips and len(set(map(tuple, books.values()))) == 1
            last = structs.replace(last, agree=agree, books=books, problem="")
            return last if agree else None

        return await _poll(compared) or last

    async def _books(self, namespace: str, name: str) -> dict[str, Sequence[int]]:
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"
        annotations = (await self._get(path, "metadata")).get("annotations") or {}
        real = chip_set(parse_names(annotations.get(REAL, "")))
        return {
            "kubelet": sorted(await self.held(f"{namespace}/{name}")),
            "assigned": sorted(parse_names(annotations.get(ALLOCATED, ""))),
            "given": list(chip_ids(real)),
            "report": list(chip_ids(real & ~await self._free())),
            "container": seen_chips(await self.container_output(path)),
        }

    async def container_output(self, path: str) -> str:
        """What the container of a pod has printed about its chips."""
        return (await self.client.request("GET", f"{path}/log")).decode()

    async def _free(self) -> ChipSet:
        found = await self.client.get(CONFIG_MAPS, config_map_name(self.node), NAMESPACE)
        return decode_report(found.data).free

    async def _get(self, path: str, part: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(await self.client.request("GET", path))[part]
        return found


async def _poll(check: Callable[[], Awaitable[T | None]]) -> T | None:
    """Return the first outcome of a check that is not None; None after the deadline."""
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := await check()) is None and time.monotonic() < deadline_s:  # noqa: ASYNC110 - others' state
        await asyncio.sleep(PAUSE_S)
    return found


def seen_chips(printed: str) -> Sequence[int]:
    """The chips that a container sees: device nodes, or else the chips of the environment."""
    ids = _SEEN.findall(printed) or "".join(_VISIBLE.findall(printed)[:1]).split(",")
    return sorted(int(chip_id) for chip_id in ids if chip_id)


def _why(status: Mapping[str, Any]) -> str:
    """Why a pod does not run, in words that name no object."""
    conditions = (
        condition.get("reason") for condition in status.get("conditions") or () if condition.get("status") == "False"
    )
    waiting = (
        container.get("state", {}).get("waiting", {}).get("reason")
        for container in status.get("containerStatuses") or ()
    )
    reasons = (status.get("reason"), *conditions, *waiting)
    return f"{status.get('phase', 'Unknown')}: {', '.join(str(reason) for reason in reasons if reason) or 'no reason'}"

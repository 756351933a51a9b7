"""The node's ConfigMap: written by the plugin, and by operators who take chips out or let them in again.

Every write carries the resourceVersion it was made for, so an operator's edit is never overwritten: the write fails,
the edit is taken up, and the report is made anew. Only our keys are patched; those of others, and their labels, stay.
So do entries of an operator's that are no names of chips: whoever wrote them knows what they were to be.
"""

from collections import deque
from collections.abc import Callable, Mapping

import structlog

from ascend.chips import ChipSet
from ascend.daemon.observable import Observable
from ascend.deviceinfo import (
    DEVICE_INFO,
    LABELS,
    MANUALLY_SEPARATED,
    NAMESPACE,
    config_map_name,
    read_manually_separated,
)
from ascend.errors import Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, ConfigMap, JsonObject
from ascend.kube.reflector import Reflector

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REMEMBERED = 8
"""How many of our latest reports are remembered: where answers were lost, any of them may be the one that is there."""

SIGNATURE = {"ascend-affinity.io/written-by": "ascend-device-plugin"}
"""On the ConfigMap, as an annotation. The reference plugin takes it away when it writes, and its word is not ours: what
it finds by polling and does not know it calls harmless (spec/node-agent.md §8.14)."""

OnEdit = Callable[[ChipSet, ChipSet], None]
"""Told which chips an operator has added to ManuallySeparateNPU, and which removed."""

OnSlip = Callable[[tuple[str, ...]], None]
"""Told which entries there, not told of before, are no names of chips."""


class DeviceInfoConfigMap:
    """A node's ConfigMap; a handler for the reflector that watches it.

    Args:
        client: the API server.
        node: the node's name.
        on_edit: told of operators' edits.
        on_slip: told of what they wrote there by mistake.
    """

    def __init__(self, client: KubeClient, node: str, on_edit: OnEdit, on_slip: OnSlip) -> None:
        self._client = client
        self._name = config_map_name(node)
        self._on_edit = on_edit
        self._on_slip = on_slip
        self._version: str | None = None
        self._separated: ChipSet = 0
        self._slips: tuple[str, ...] = ()
        self._sent: deque[str] = deque(maxlen=REMEMBERED)
        self._found: str | None = None
        self._acknowledged: str | None = None
        self.was_signed = False
        """What ``fetch`` found was written by this program."""
        self.lost: Observable[None] = Observable(None)
        """Set when somebody has deleted the ConfigMap, or written another report or other labels into it."""

    @property
    def is_ours(self) -> bool:
        """Nobody else's report is there, as far as was seen."""
        return self._found in (None, self._acknowledged, *self._sent)

    def watch(self) -> Reflector[ConfigMap]:
        """The watch that feeds it."""
        return Reflector(
            self._client, CONFIG_MAPS, self, namespace=NAMESPACE, field_selector=f"metadata.name={self._name}"
        )

    async def fetch(self) -> Mapping[str, str]:
        """What an earlier plugin has left there; nothing where there is none.

        Raises:
            ApiError: the server refuses.
            Unreachable: it does not answer.
        """
        try:
            found = await self._client.get(CONFIG_MAPS, self._name, NAMESPACE)
        except NotFound:
            return {}
        self._version = found.metadata.resource_version
        self._separated = self._read(found)
        self.was_signed = SIGNATURE.items() <= found.metadata.annotations.items()
        return found.data

    def applied(self, obj: ConfigMap) -> None:
        """The ConfigMap is new or has changed; our own writes come by here too, late."""
        if self._version is None or not is_newer(obj.metadata.resource_version, self._version):
            return
        self._take(obj)
        if not self.is_ours or not LABELS.items() <= obj.metadata.labels.items():
            log.warning("somebody has written over the report", config_map=obj.key)
            self.lost.set(None)

    def deleted(self, obj: ConfigMap) -> None:
        """The ConfigMap is gone. That is no word about any chip."""
        if self._version is not None:
            log.warning("somebody has deleted the report", config_map=obj.key)
            self._version = self._found = None
            self.lost.set(None)

    async def write(self, data: Mapping[str, str]) -> None:
        """Write our keys.

        Raises:
            Conflict: somebody has written meanwhile; what they changed has been taken up, make the report anew.
            ApiError: the server refuses.
            Unreachable: it does not answer; what was written is unknown.
        """
        metadata: JsonObject = {"labels": LABELS, "annotations": SIGNATURE}
        listed = ",".join(filter(None, (data.get(MANUALLY_SEPARATED), *self._slips)))
        whole = {**data, MANUALLY_SEPARATED: listed}
        self._sent.append(data[DEVICE_INFO])
        try:
            if self._version is None:
                metadata |= {"name": self._name, "namespace": NAMESPACE}
                body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": whole}
                written = await self._client.create(CONFIG_MAPS, body, NAMESPACE)
            else:
                metadata |= {"resourceVersion": self._version}
                body = {"metadata": metadata, "data": whole}
                written = await self._client.patch(CONFIG_MAPS, self._name, body, namespace=NAMESPACE)
        except NotFound:
            self._version = self._found = None
            raise Conflict("the ConfigMap has been deleted", status=409) from None
        except Conflict:
            await self._catch_up()
            raise
        self._version = written.metadata.resource_version
        self._found = self._acknowledged = data[DEVICE_INFO]
        self._separated = read_manually_separated(data)[0]

    async def _catch_up(self) -> None:
        try:
            found = await self._client.get(CONFIG_MAPS, self._name, NAMESPACE)
        except NotFound:
            self._version = self._found = None
        else:
            self._take(found)

    def _take(self, obj: ConfigMap) -> None:
        theirs, ours = self._read(obj), self._separated
        self._version, self._separated = obj.metadata.resource_version, theirs
        self._found = obj.data.get(DEVICE_INFO)
        if theirs != ours:
            self._on_edit(theirs & ~ours, ours & ~theirs)

    def _read(self, obj: ConfigMap) -> ChipSet:
        chips, slips = read_manually_separated(obj.data)
        slips = tuple(dict.fromkeys(slips))
        if new := tuple(slip for slip in slips if slip not in self._slips):
            self._on_slip(new)
        self._slips = slips
        return chips


def is_newer(version: str, known: str) -> bool:
    """Whether one resourceVersion is later than another; one that can't be compared counts as later."""
    # Kubernetes says since 1.35 that these are numbers that grow; they always were.
    return not (version.isdigit() and known.isdigit()) or int(version) > int(known)

"""The node's ConfigMap ``mindx-dl-deviceinfo-<node>``: written by the plugin, and edited by operators.

Every write carries the resourceVersion it was made for, so an operator's edit is never overwritten: the write fails,
the edit is applied, and the report is made again. Only our keys are patched; other keys and labels stay. Entries of
``ManuallySeparateNPU`` that are not chip names stay too, because only their author knows what they mean.
"""

import http
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

import structlog

from ascend.chips import ChipSet, chip_set
from ascend.cordons import CORDONED, Cordon, read_all_cordons, write_cordons
from ascend.daemon.observable import Observable
from ascend.deviceinfo import (
    DEVICE_INFO,
    LABELS,
    MANUALLY_SEPARATED,
    NAMESPACE,
    OUR_PLUGIN,
    WRITTEN_BY,
    config_map_name,
    read_manually_separated,
    read_update_time,
)
from ascend.errors import ApiError, Conflict, NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, ConfigMap, JsonObject, is_newer
from ascend.kube.reflector import Reflector

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

REMEMBERED = 8
"""How many of our latest reports are remembered: if answers were lost, any of them may be the present one."""

SIGNATURE = {WRITTEN_BY: OUR_PLUGIN}
"""An annotation on the ConfigMap. The reference plugin removes it when it writes; its reports are not trusted as ours,
because it calls unknown codes found by polling harmless (docs/spec/faults.md#unknown-codes)."""

LAST_UPDATE = "ascend-affinity.io/last-update"
"""An annotation on the ConfigMap while no plugin updates it, when UpdateTime is 0: the UpdateTime before that."""

OnEdit = Callable[[ChipSet, ChipSet], None]
"""Receives the chips an operator added to ManuallySeparateNPU or cordoned, and those removed."""

_DIGITS = 12
"""A longer number is no time in seconds."""

OnInvalid = Callable[[tuple[str, ...]], None]
"""Receives new entries there that are not chip names."""


class DeviceInfoConfigMap:
    """A node's ConfigMap; a handler for the reflector that watches it.

    Args:
        client: the API server.
        node: the node's name.
        on_edit: receives operators' edits.
        on_invalid: receives entries that are not chip names, each once.
    """

    def __init__(self, client: KubeClient, node: str, on_edit: OnEdit, on_invalid: OnInvalid) -> None:
        self._client = client
        self._name = config_map_name(node)
        self._on_edit = on_edit
        self._on_invalid = on_invalid
        self._version: str | None = None
        self._separated: ChipSet = 0
        self._cordons: dict[int, Cordon] = {}  # of separated chips
        self._found_cordons: AbstractSet[int] = frozenset()  # chips with an entry, whether separated or not
        self._invalid: tuple[str, ...] = ()
        self._sent: deque[str] = deque(maxlen=REMEMBERED)
        self._found: str | None = None
        self._acknowledged: str | None = None
        self.latest_s = 0
        """The latest UpdateTime that a reader can have seen, Unix seconds; 0 if none is known."""
        self.was_signed = False
        """Whether this program wrote what ``fetch`` found."""
        self.lost: Observable[None] = Observable(None)
        """Set when another client deleted the ConfigMap, or overwrote the report or the labels."""

    @property
    def is_ours(self) -> bool:
        """Whether the report is ours, as far as seen."""
        return self._found in (None, self._acknowledged, *self._sent)

    @property
    def cordoned(self) -> ChipSet:
        """The separated chips that an operator has cordoned, as far as seen; a rule may have separated them as well."""
        return chip_set(self._cordons)

    def watch(self) -> Reflector[ConfigMap]:
        """Return the watch that feeds it."""
        return Reflector(
            self._client, CONFIG_MAPS, self, namespace=NAMESPACE, field_selector=f"metadata.name={self._name}"
        )

    async def fetch(self) -> Mapping[str, str]:
        """Return the data that an earlier plugin left; empty if there is none.

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
        self._read_cordons(found)
        self._note_time(found)
        self.was_signed = SIGNATURE.items() <= found.metadata.annotations.items()
        return found.data

    def on_apply(self, obj: ConfigMap) -> None:
        """Take over a change; the watch shows our own writes too, later."""
        if self._version is None or not is_newer(obj.metadata.resource_version, self._version):
            return
        self._take(obj)
        if not self.is_ours or not LABELS.items() <= obj.metadata.labels.items():
            log.warning("somebody else overwrote the report", config_map=obj.key)
            self.lost.set(None)

    def on_delete(self, obj: ConfigMap) -> None:
        """Note the deletion; it changes nothing about any chip."""
        if self._version is not None:
            log.warning("somebody else deleted the report", config_map=obj.key)
            self._version = self._found = None
            self.lost.set(None)

    async def write(self, data: Mapping[str, str]) -> None:
        """Write our keys.

        Raises:
            Conflict: somebody else wrote in the meantime; their edit is applied, make the report again.
            ApiError: the server refuses.
            Unreachable: it does not answer; whether the write succeeded is unknown.
        """
        update_time_s = read_update_time(data)
        self.latest_s = max(self.latest_s, update_time_s)
        annotations: dict[str, str | None] = {**SIGNATURE}
        if not update_time_s:
            annotations[LAST_UPDATE] = str(self.latest_s)
        elif self._version is not None:
            annotations[LAST_UPDATE] = None  # a patch removes it
        separated = read_manually_separated(data)[0]
        cordons = {chip: cordon for chip, cordon in self._cordons.items() if separated >> chip & 1}
        if cordons.keys() != (self._found_cordons if self._version is not None else frozenset()):
            annotations[CORDONED] = write_cordons(cordons)
        metadata: JsonObject = {"labels": LABELS, "annotations": annotations}
        listed = ",".join(filter(None, (data.get(MANUALLY_SEPARATED), *self._invalid)))
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
            raise Conflict("the ConfigMap was deleted", status=409) from None
        except Conflict:
            await self._catch_up()
            raise
        except ApiError as error:
            if error.status != http.HTTPStatus.UNPROCESSABLE_ENTITY or "immutable" not in error.message:
                raise
            sentence = f"somebody has made the ConfigMap immutable: delete {NAMESPACE}/{self._name}, it is made again"
            raise ApiError(f"{sentence} ({error.message})", status=error.status, reason=error.reason) from error
        self._version = written.metadata.resource_version
        self._found = self._acknowledged = data[DEVICE_INFO]
        self._separated, self._cordons, self._found_cordons = separated, cordons, cordons.keys()

    async def _catch_up(self) -> None:
        try:
            found = await self._client.get(CONFIG_MAPS, self._name, NAMESPACE)
        except NotFound:
            self._version = self._found = None
        else:
            self._take(found)

    def _take(self, obj: ConfigMap) -> None:
        theirs, ours, before = self._read(obj), self._separated, self._cordons
        self._version, self._separated = obj.metadata.resource_version, theirs
        self._read_cordons(obj)
        # A chip that a rule has separated is in the list already when an operator cordons it.
        cordoned = chip_set(chip for chip, cordon in self._cordons.items() if before.get(chip) != cordon)
        added, removed = theirs & ~ours | cordoned, ours & ~theirs
        self._found = obj.data.get(DEVICE_INFO)
        self._note_time(obj)
        if added or removed:
            self._on_edit(added, removed)

    def _read_cordons(self, obj: ConfigMap) -> None:
        found = read_all_cordons(obj)
        self._cordons = {chip: cordon for chip, cordon in found.items() if self._separated >> chip & 1}
        self._found_cordons = found.keys()

    def _note_time(self, obj: ConfigMap) -> None:
        last_update = obj.metadata.annotations.get(LAST_UPDATE, "")
        before_s = int(last_update) if last_update.isdecimal() and len(last_update) <= _DIGITS else 0
        self.latest_s = max(self.latest_s, read_update_time(obj.data), before_s)

    def _read(self, obj: ConfigMap) -> ChipSet:
        chips, invalid = read_manually_separated(obj.data)
        invalid = tuple(dict.fromkeys(invalid))
        if new := tuple(entry for entry in invalid if entry not in self._invalid):
            self._on_invalid(new)
        self._invalid = invalid
        return chips

"""Templates of pods in the objects of jobs: as little as the allocator keeps of them, and whole.

The ``spec`` of each kind is a generic type: the allocator reads it with ``Template``, ``npuctl plan`` with
``PodTemplate``. Quantities of custom resources are stored as they were written, so a number of chips may be a number or
text.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, Generic, TypeAlias, TypeVar

import msgspec

from ascend.chips import RESOURCE
from ascend.kube.kept import short
from ascend.kube.objects import Metadata, PodSpec
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import suffix_of

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]


class _Resources(msgspec.Struct, frozen=True):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class _Container(msgspec.Struct, frozen=True):
    resources: _Resources | None = None


class _PodSpec(msgspec.Struct, rename="camel", frozen=True):
    scheduler_name: str | None = None
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None

    @property
    def requests_chips(self) -> bool:
        resources = (container.resources for container in (*(self.containers or ()), *(self.init_containers or ())))
        return any(
            str(quantity) != "0" and (name in {RESOURCE, RESOURCE_CORES} or suffix_of(name) is not None)
            for wanted in resources
            if wanted is not None
            for quantities in (wanted.limits, wanted.requests)
            if quantities
            for name, quantity in quantities.items()
        )


class Template(msgspec.Struct, frozen=True):
    """A template of pods; only the name of the scheduler and whether the pods request devices are kept."""

    spec: _PodSpec | None = None

    def __post_init__(self) -> None:
        if self.spec is not None:
            kept = _kept(short(self.spec.scheduler_name or ""), requests_chips=self.spec.requests_chips)
            msgspec.structs.force_setattr(self, "spec", kept)

    @property
    def requests_chips(self) -> bool:
        """Whether its pods request chips, vNPUs or AI cores."""
        return self.spec is not None and self.spec.containers is not None

    @property
    def scheduler(self) -> str:
        """The name of the scheduler; empty without a name."""
        return (self.spec.scheduler_name if self.spec is not None else None) or ""


@lru_cache(maxsize=256)  # one object for all equal ones
def _kept(scheduler: str, *, requests_chips: bool) -> _PodSpec:
    return _PodSpec(scheduler, [_Container(_Resources({RESOURCE: "1"}))] if requests_chips else None)


class PodTemplate(msgspec.Struct, frozen=True):
    """A template of pods as a whole."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()

    @property
    def requests_chips(self) -> bool:
        """Whether its pods request chips, vNPUs or AI cores."""
        return any(container.requests_chips for container in (*self.spec.containers, *self.spec.init_containers))

    @property
    def scheduler(self) -> str:
        """The name of the scheduler; empty without a name."""
        return self.spec.scheduler_name

    def with_marks(self, labels: Mapping[str, str], annotations: Mapping[str, str]) -> "PodTemplate":
        """Return the template with more labels and annotations."""
        given = self.metadata
        more = {"labels": {**given.labels, **labels}, "annotations": {**given.annotations, **annotations}}
        return PodTemplate(msgspec.structs.replace(given, **more), self.spec)


T = TypeVar("T", bound=Template | PodTemplate)


class Replicas(msgspec.Struct, Generic[T], rename="camel", frozen=True):
    """Pods of one template, and how many there are."""

    template: T | None = None
    replicas: Count | None = None

    @property
    def number(self) -> int:
        """The number of pods."""
        return 1 if self.replicas is None else self.replicas

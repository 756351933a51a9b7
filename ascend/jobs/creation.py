"""Pods as the controllers of workloads create them, with their labels, annotations and owners.

Their names are numbered where a controller would choose a random suffix.
"""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec import structs

from ascend.errors import InvalidValue
from ascend.jobs.templates import PodTemplate, Template
from ascend.kube.objects import Metadata, OwnerReference, Pod

NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
MOST_PODS: Final = 10_000
"""Pods of one template: more are an error in writing, and would fill the memory."""


class Controller(NamedTuple):
    """An object that creates pods: the workload itself, or a child of the workload.

    Attributes:
        version: its ``apiVersion``.
        kind: its kind.
        namespace: its namespace.
        name: its name.
        labels: its labels; what a controller creates has none here.
        annotations: its annotations, likewise.
    """

    version: str
    kind: str
    namespace: str
    name: str
    labels: Mapping[str, str] = NOTHING
    annotations: Mapping[str, str] = NOTHING

    def metadata(self, kind: str, name: str) -> Metadata:
        """Return the metadata of an object that the controller creates."""
        uid = f"{self.kind} {self.namespace}/{self.name}"
        owner = OwnerReference(self.version, self.kind, self.name, uid, controller=True)
        return Metadata(name, self.namespace, f"{kind} {self.namespace}/{name}", owner_references=(owner,))

    def metadata_with_labels(self, kind: str, name: str) -> Metadata:
        """Return the same with the labels and annotations of the controller."""
        made = self.metadata(kind, name)
        return structs.replace(made, labels=dict(self.labels), annotations=dict(self.annotations))

    def child(self, version: str, kind: str, name: str) -> "Controller":
        """Return an object that the controller creates, and that creates pods."""
        return Controller(version, kind, self.namespace, name)

    def pods(
        self,
        template: Template | PodTemplate | None,
        numbers: Sequence[int],
        *,
        role: str = "",
        index: str = "",
        labels: Mapping[str, str] = NOTHING,
        annotations: Mapping[str, str] = NOTHING,
    ) -> Iterator[Pod]:
        """Yield a pod for each number; ``role`` is part of its name, and ``index`` the key of its number.

        Raises:
            InvalidValue: there are too many.
        """
        if len(numbers) > MOST_PODS:
            raise InvalidValue(f"{len(numbers)} pods of one template are more than {MOST_PODS}")
        given = template if isinstance(template, PodTemplate) else PodTemplate()
        for number in numbers:
            own = {index: str(number)} if index else {}
            metadata = structs.replace(
                self.metadata("Pod", "-".join(filter(None, (self.name, role, str(number))))),
                labels={**given.metadata.labels, **labels, **own},
                annotations={**given.metadata.annotations, **annotations, **own},
            )
            yield Pod(metadata=metadata, spec=given.spec)

"""ConfigMaps from which containers take the variables of ascend-docker-runtime (``envFrom``, without a prefix).

An admission policy sees only the pod. Secrets are not read.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from ascend.visible_devices import RESERVED
from npuctl.doctor.finding import Finding, warning
from npuctl.reading.manifests import Manifest

MOST_READ: Final = 200
"""More ConfigMaps than this are not read one by one."""


class _Reference(msgspec.Struct):
    name: str = ""


class _EnvFrom(msgspec.Struct, rename="camel"):
    config_map_ref: _Reference | None = None
    prefix: str = ""


class _Container(msgspec.Struct, rename="camel"):
    env_from: list[_EnvFrom] | None = None


class _Spec(msgspec.Struct, rename="camel"):
    containers: list[_Container] | None = None
    init_containers: list[_Container] | None = None
    ephemeral_containers: list[_Container] | None = None


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""


class PodVariables(msgspec.Struct):
    """A pod, as far as it names ConfigMaps for its environment."""

    metadata: _Metadata
    spec: _Spec = msgspec.field(default_factory=_Spec)

    @property
    def config_maps(self) -> Iterator[tuple[str, str]]:
        """The namespaces and names of the ConfigMaps whose keys become variables."""
        spec = self.spec
        for container in (*(spec.containers or ()), *(spec.init_containers or ()), *(spec.ephemeral_containers or ())):
            for source in container.env_from or ():
                if source.config_map_ref is not None and not source.prefix:
                    yield self.metadata.namespace, source.config_map_ref.name


class _ConfigMap(msgspec.Struct):
    data: dict[str, str | None] | None = None


class VariableSource(msgspec.Struct, frozen=True):
    """A ConfigMap with variables of the runtime, and the first pod that takes them.

    Attributes:
        config_map: ``namespace/name``.
        keys: the variables.
        pod: ``namespace/name``.
    """

    config_map: str
    keys: tuple[str, ...]
    pod: str


def wanted(pods: Iterable[PodVariables]) -> dict[tuple[str, str], str]:
    """The ConfigMaps that pods name, each with the first of these pods."""
    found: dict[tuple[str, str], str] = {}
    for pod in pods:
        for config_map in pod.config_maps:
            found.setdefault(config_map, f"{pod.metadata.namespace}/{pod.metadata.name}")
    return found


def taken(where: tuple[str, str], pod: str, data: Mapping[str, str | None]) -> Iterator[VariableSource]:
    """Yield what a pod takes from a ConfigMap, if that has such variables."""
    if keys := tuple(key for key in RESERVED if key in data):
        yield VariableSource("/".join(where), keys, pod)


def taken_in(manifests: Iterable[Manifest]) -> Iterator[VariableSource]:
    """Yield the same of the objects of files.

    Raises:
        InvalidValue: one of them is invalid.
    """
    given = list(manifests)
    pods = [manifest.part(PodVariables) for manifest in given if manifest.origin.kind == "Pod"]
    maps = {manifest.origin.key: manifest for manifest in given if manifest.origin.kind == "ConfigMap"}
    for where, pod in wanted(pods).items():
        if (named := maps.get("/".join(where))) is not None:
            yield from taken(where, pod, named.part(_ConfigMap).data or {})


def check_taken(found: Iterable[VariableSource]) -> Iterator[Finding]:
    """A warning for each."""
    for source in found:
        sentence = (
            f"ConfigMap {source.config_map} sets {', '.join(source.keys)} in pod {source.pod}: where "
            "ascend-docker-runtime is the runtime, its containers get the chips named there"
        )
        yield warning(sentence, "remove these keys (docs/security.md#isolation)")

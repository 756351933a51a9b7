"""The containers of a pod: requests of the maker's resources, claimed volumes, and variables of devices.

``ascend-docker-runtime`` gives containers chips by environment variables. A pod's own value wins over the device
plugin's, and the runtime asks for no request. So a pod may only take ``ASCEND_VISIBLE_DEVICES`` from an annotation that
its author can't write, as the makers' manifests do. An admission policy of the chart (visible-devices.yaml) has the
same rule.
"""

from functools import lru_cache
from heapq import nlargest
from typing import Final

import msgspec

from ascend.annotations import ALLOCATED, REAL, WRITERS, Writer
from ascend.chips import RESOURCE
from ascend.errors import InvalidValue
from ascend.kube.kept import MOST_CONTAINERS, MOST_ENTRIES, kept_quantities, short
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import RESOURCES, suffix_of

_VNPUS = f"{RESOURCE}-"
_MAX_DIGITS = 19
"""The longest quantity: the API server accepts none above 2^63-1, and Python refuses to convert thousands of digits."""


@lru_cache(maxsize=1024)  # called a dozen times for each decision, with the same few quantities
def whole_number(text: str | None) -> int | None:
    """Parse a quantity that is a whole number; None if it is missing or not a whole number."""
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS else None


VISIBLE_DEVICES: Final = "ASCEND_VISIBLE_DEVICES"

RESERVED: Final = (
    VISIBLE_DEVICES,
    "ASCEND_RUNTIME_OPTIONS",
    "ASCEND_RUNTIME_MOUNTS",
    "ASCEND_VNPU_SPECS",
    "ASCEND_ALLOW_LINK",
)
"""The variables: the chips, whether their ids are those of vNPUs, folders of the node, a vNPU to be cut, and whether
mounts may follow symbolic links."""

GRANTED: Final = (ALLOCATED, REAL, *(key for key, writer in WRITERS.items() if writer is Writer.OTHERS), *RESOURCES)
"""The annotations from which a pod may take ``ASCEND_VISIBLE_DEVICES``: its author can't write them."""


def field_path(annotation: str) -> str:
    """The path of an annotation, as ``fieldRef`` names it."""
    return f"metadata.annotations['{annotation}']"


def is_granted(variable: str, path: str) -> bool:
    """Whether a pod may take a variable from a field of its own.

    Args:
        variable: the name of the variable, as it is written.
        path: the path of the field.
    """
    return variable == VISIBLE_DEVICES and path in map(field_path, GRANTED)


def is_reserved(variable: str) -> bool:
    """Whether the runtime reads a variable with this name; it ignores spaces around it."""
    return variable.strip() in RESERVED


def may_begin_reserved(prefix: str) -> bool:
    """Whether variables with this prefix (``envFrom``) may be reserved, whatever follows it."""
    return bool(prefix) and any(name.startswith(prefix.strip()) for name in RESERVED)


class ClaimSource(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The name of a PersistentVolumeClaim."""

    claim_name: str = ""

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "claim_name", short(self.claim_name))


class EphemeralSource(msgspec.Struct, frozen=True, gc=False):
    """A generic ephemeral volume; of its template nothing is read."""


class Volume(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A volume of a pod, as far as it is a claim."""

    name: str = ""
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: EphemeralSource | None = None

    def claim(self, pod: str) -> str:
        """The name of the claim of a pod of this name; empty if the volume needs none."""
        if self.persistent_volume_claim is not None:
            return self.persistent_volume_claim.claim_name
        # Named by Kubernetes' ephemeral volume controller.
        return f"{pod}-{self.name}" if self.ephemeral is not None else ""


class Resources(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A container's resources of the maker; quantities as the API server formats them.

    Containers with the same resources have one object, so that memory and time depend on the kinds of pods.

    Attributes:
        limits: as in the manifest.
        requests: likewise.
        chips: the number of chips; None if the quantity is not a whole number.
        vnpus: by size, the number of vNPUs; an invalid quantity counts as one.
        cores: the number of AI cores; an invalid quantity counts as one.
        requests_chips: whether chips, vNPUs or AI cores are requested; an invalid quantity counts as well, and is
            refused later.
    """

    limits: dict[str, str] = {}
    requests: dict[str, str] = {}
    # Read of both in ``of_maker``: no manifest has fields of these names.
    chips: int | None = msgspec.field(default=0, name="#chips")
    vnpus: dict[str, int] = msgspec.field(default_factory=dict, name="#vnpus")
    cores: int = msgspec.field(default=0, name="#cores")
    requests_chips: bool = msgspec.field(default=False, name="#requestsChips")

    @property
    def of_maker(self) -> "Resources":
        """The resources of the maker among these, read."""
        limits = kept_quantities(self.limits)
        requests = limits if self.requests == self.limits else kept_quantities(self.requests)
        if not limits and not requests:
            return _NO_RESOURCES
        read = _read_shared if len(limits) + len(requests) <= _MOST_SHARED else _read_resources
        return read(tuple(limits.items()), tuple(requests.items()))


_NO_RESOURCES = Resources()
_MOST_SHARED = 8
"""Containers with more quantities have an object each: 1,024 others take a few MiB, whatever authors of pods write."""


def _read_resources(limited: tuple[tuple[str, str], ...], requested: tuple[tuple[str, str], ...]) -> Resources:
    limits, requests = dict(limited), dict(requested)
    chips = whole_number(quantity := limits.get(RESOURCE) or requests.get(RESOURCE) or "0")
    vnpus: dict[str, int] = {}
    for quantities in (requests, limits):
        for name, text in quantities.items():
            if name.startswith(_VNPUS) and (suffix := suffix_of(name)) is not None:
                number = whole_number(text)
                vnpus[suffix] = 1 if number is None else number
    vnpus = {suffix: number for suffix, number in vnpus.items() if number}
    asked = limits.get(RESOURCE_CORES) or requests.get(RESOURCE_CORES)
    cores = 0 if asked is None else 1 if (number := whole_number(asked)) is None else number
    requests_chips = (quantity != "0" and chips != 0) or bool(vnpus) or bool(cores)
    return Resources(limits, limits if requests == limits else requests, chips, vnpus, cores, requests_chips)


_read_shared = lru_cache(maxsize=1024)(_read_resources)


INDEX_VARIABLES = ("VC_TASK_INDEX", "JOB_COMPLETION_INDEX")
"""The environment variables with the index of a pod in its job: Volcano's and that of an Indexed Job."""
_READ_VARIABLES = frozenset({*INDEX_VARIABLES, *RESERVED})


class FieldRef(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A field of the pod itself."""

    field_path: str = ""


class ValueFrom(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Where an environment variable has its value from, if that is a field of the pod."""

    field_ref: FieldRef | None = None


class EnvVar(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """An environment variable with a literal value, or one of a field of the pod."""

    name: str = ""
    value: str = ""
    value_from: ValueFrom | None = None

    @property
    def names_devices(self) -> bool:
        """Whether ascend-docker-runtime would give the container the named devices, whoever has named them."""
        if not is_reserved(self.name):
            return False
        field = self.value_from.field_ref if self.value_from is not None else None
        return field is None or not is_granted(self.name, field.field_path)


class EnvFrom(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """All keys of a ConfigMap or Secret as environment variables, with this prefix."""

    prefix: str = ""


class Container(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A container of a pod spec; of its environment only ``INDEX_VARIABLES`` are kept, to save memory.

    ``own_devices`` are the variables by which it names devices of its own: ascend-docker-runtime would give it these.
    """

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvFrom, ...] = ()
    own_devices: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        msgspec.structs.force_setattr(self, "resources", self.resources.of_maker)
        if self.env or self.env_from:
            read = [env for env in self.env if env.name.strip() in _READ_VARIABLES]  # of dozens
            named = [env.name.strip() for env in read if env.names_devices]
            named += [f"{source.prefix.strip()}…" for source in self.env_from if may_begin_reserved(source.prefix)]
            # An object that was read keeps what was found, although its variables are gone.
            msgspec.structs.force_setattr(self, "own_devices", tuple(dict.fromkeys(named)) or self.own_devices)
            msgspec.structs.force_setattr(self, "env_from", ())
            indexes = [EnvVar(env.name, short(env.value)) for env in read if env.name in INDEX_VARIABLES]
            msgspec.structs.force_setattr(self, "env", tuple(indexes[:MOST_ENTRIES]))

    @property
    def chips(self) -> int:
        """The number of chips that the container requests.

        Raises:
            InvalidValue: the quantity is not a whole number.
        """
        number = self.resources.chips
        if number is None:
            text = self.resources.limits.get(RESOURCE) or self.resources.requests[RESOURCE]
            raise InvalidValue(f"container {self.name}: {RESOURCE}: {text[:40]!r} is not a whole number of chips")
        return number

    @property
    def vnpus(self) -> dict[str, int]:
        """By size, the number of vNPUs that the container requests; an invalid quantity counts as one."""
        return self.resources.vnpus

    @property
    def requests_devices(self) -> bool:
        """Whether it requests devices of the maker, of whatever kind."""
        return self.resources is not _NO_RESOURCES

    @property
    def cores(self) -> int:
        """The number of AI cores that the container requests; an invalid quantity counts as one."""
        return self.resources.cores

    @property
    def requests_chips(self) -> bool:
        """Whether it requests chips, vNPUs or AI cores; an invalid quantity counts as well, and is refused later."""
        return self.resources.requests_chips

    @property
    def weight(self) -> tuple[bool, int]:
        """The weight in the pod's need of chips: later containers reuse the chips of a regular init container."""
        return self.restart_policy == "Always", self.resources.chips or 0


def first_containers(containers: tuple[Container, ...]) -> tuple[Container, ...]:
    """Of too many containers the first ones, and as many others that request chips or name devices: the largest."""
    others = [
        container
        for container in containers[MOST_CONTAINERS:]
        if container.own_devices or (container.requests_devices and container.requests_chips)
    ]
    if len(others) > MOST_CONTAINERS:
        others = nlargest(MOST_CONTAINERS, others, key=lambda container: container.weight)
    return (*containers[:MOST_CONTAINERS], *others)

"""What a job asks of the leaf switches: the label ``tor-affinity``.

docs/spec/switch-affinity.md#inputs
"""

from enum import StrEnum

import msgspec

from allocator.rules.asked import Asked
from allocator.rules.job_products import NO_TOR_AFFINITY, TOR_AFFINITY, block_marks
from allocator.switches.rooms import Schema
from ascend.errors import Refusal
from ascend.kube.objects import Pod
from ascend.reasons import Reason


class Version(StrEnum):
    """By which rule servers are chosen where there are two layers of switches."""

    V1 = "1.0"
    V2 = "2.0"


class SwitchDemand(msgspec.Struct, frozen=True):
    """What a job of several pods asks of the switches.

    Attributes:
        schema: its schema.
        version: by which rule servers are chosen.
        most_shared: how many switches it should share with other spanning jobs at most; only for version 2.
        pods: how many pods it has.
    """

    schema: Schema
    version: Version
    most_shared: int
    pods: int


def schema_of(pod: Pod) -> Schema | None:
    """The schema in the label of a pod that has its job's settings; None for none, or an unknown schema."""
    value = pod.metadata.labels.get(TOR_AFFINITY)
    return Schema(value) if value in set(Schema) else None


def read_switch_demand(asked: Asked) -> SwitchDemand | None:
    """Read a job's demand; None for a job without the label, or of a single pod.

    Raises:
        Refusal: ``InvalidRequest`` if the value of the label is unknown, ``UnsupportedPolicy`` if the job asks for
            blocks of nodes as well.
    """
    value = asked.pod.metadata.labels.get(TOR_AFFINITY)
    if value is None or value == NO_TOR_AFFINITY:
        return None
    schema = schema_of(asked.pod)
    if schema is None:
        known = f"{', '.join(Schema)} or {NO_TOR_AFFINITY}"
        sentence = f"label {TOR_AFFINITY}={value[:40]!r} is not {known}"
        raise Refusal(Reason.INVALID_REQUEST, f"job {asked.job}: {sentence}")
    if marks := block_marks(asked.pod):
        both = f"label {TOR_AFFINITY}={value} and blocks of nodes ({', '.join(marks)})"
        raise Refusal(Reason.UNSUPPORTED_POLICY, f"job {asked.job}: {both} exclude each other; remove one of them")
    if asked.pods == 1:
        return None
    limits = asked.defaults.switches
    return SwitchDemand(schema, Version(limits.version), limits.most_shared, asked.pods)

"""The volumes of a pod that are claimed: its scheduler binds the pod only once the claims are bound."""

import msgspec

from ascend.kube.kept import short


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

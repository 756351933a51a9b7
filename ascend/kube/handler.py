"""What a reflector calls with the changes of its objects."""

from typing import Protocol, TypeVar

from ascend.kube.objects import KubeObject

T_contra = TypeVar("T_contra", bound=KubeObject, contravariant=True)


class Handler(Protocol[T_contra]):
    """Called by a reflector with every change."""

    def on_apply(self, obj: T_contra) -> None:
        """The object was added or has changed."""

    def on_delete(self, obj: T_contra) -> None:
        """The object was deleted; ``obj`` is its last known state."""


class Unkept(Protocol[T_contra]):
    """Objects without a copy in the reflector, because the handler needs little of them and they may be many.

    The handler gets them like all others, but again with every list.
    """

    def unkept(self, obj: T_contra, /) -> bool:
        """Whether an object is not kept."""

    def list_started(self) -> None:
        """The handler will get all of these objects again."""

    def list_ended(self) -> None:
        """Objects that the handler did not get since the list started no longer exist."""

"""Objects are decoded only as far as they are needed."""

from ascend.kube.objects import Container, EnvVar, Metadata
from ascend.kube.workloads import StatefulSet


def test_the_metadata_of_an_owner_is_kept_without_labels() -> None:
    seen = StatefulSet(metadata=Metadata("a", "b", "c", "7", labels={"d": "e"}, annotations={"f": "g"}))
    assert seen.metadata == Metadata("a", "b", "c", "7")


def test_only_environment_variables_with_a_rank_are_kept() -> None:
    rank = EnvVar("VC_TASK_INDEX", "7")
    assert Container("main", env=(EnvVar("PASSWORD", "x"), rank)).env == (rank,)

"""Executors of Spark on Kubernetes: the driver, a pod, creates them, and works with the running ones."""

from typing import Final

from ascend.jobs.kind import ALONE, BINDINGS, ONE, JobKind, Text
from ascend.kube.objects import Pod

SPARK: Final = "Spark application"
_NAME = "spark-app-selector"
_ROLE = "spark-role"


def _find(pod: Pod) -> str | None:
    labels = pod.metadata.labels
    return (labels.get(_NAME) or None) if labels.get(_ROLE) == "executor" else None


KIND: Final = JobKind(
    SPARK,
    Text("executors of Spark", f"label `{_NAME}`, and `{_ROLE}: executor`", ALONE, ONE, BINDINGS, "the driver"),
    _find, marks=(_NAME,), is_alone=True,
)  # fmt: skip

"""Pods of Workflows of Argo: steps, each of which works alone."""

from typing import Final

from ascend.jobs.kind import ALONE, BINDINGS, ONE, JobKind, Text
from ascend.jobs.marks import by_owner

WORKFLOW: Final = "Workflow"

KIND: Final = JobKind(
    WORKFLOW,
    Text("Workflow of Argo", "its owner, of `argoproj.io`", ALONE, ONE, BINDINGS, "Argo, by `retryStrategy`"),
    by_owner(WORKFLOW, "argoproj.io/"), owners=("argoproj.io Workflow",), recreates=False, is_alone=True,
)  # fmt: skip

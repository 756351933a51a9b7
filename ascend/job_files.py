"""The ConfigMaps by which MindCluster tells the processes of a running job about recovery (docs/spec/job-files.md)."""

from collections.abc import Mapping
from typing import Final

RESET_CONFIG: Final = "reset-config-"
"""The ConfigMap ``reset-config-<job>`` in the job's namespace."""
RESET: Final = "reset.json"
RESTART_TYPE: Final = "restartType"

_JOB_NAME_LABELS: Final = ("volcano.sh/job-name", "training.kubeflow.org/job-name", "deploy-name")


def job_name(labels: Mapping[str, str]) -> str:
    """Return the job's name in the names of its ConfigMaps, from the labels of a pod; empty if it has none.

    See docs/spec/job-files.md#the-name-of-a-job.
    """
    return next(filter(None, map(labels.get, _JOB_NAME_LABELS)), "")

"""Pods of jobs."""

from collections.abc import Mapping
from typing import Final

from ascend.kube.containers import Container, EnvVar
from ascend.kube.objects import Pod
from tests.allocator.builders import container, owned_by, pod

INDEX: Final = "batch.kubernetes.io/job-completion-index"


def marked(
    name: str,
    count: int | None = 1,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
    owner: str = "",
    phase: str = "Pending",
    terminating: bool = False,
    since: str = "2026-01-01T00:00:00Z",
    env: Mapping[str, str] | None = None,
) -> Pod:
    """A pod with this metadata; ``owner`` is the kind of a controller named ``owner``."""
    variables = [EnvVar(key, value) for key, value in (env or {}).items()]
    made = pod(
        name,
        annotations=annotations,
        labels=labels,
        phase=phase,
        terminating=terminating,
        since=since,
        containers=[Container("main", container("main", count).resources, env=tuple(variables))],
    )
    return owned_by(made, owner, name="owner") if owner else made

"""TrainJobs of Kubeflow's Trainer, whose controller creates a JobSet: the pods are those of the JobSet."""

from collections.abc import Iterator
from typing import Final

import msgspec

from ascend.jobs.core import BatchJobTemplate, JobTemplate
from ascend.jobs.creation import Controller
from ascend.jobs.job_set import JobSet, JobSetSpec, ReplicatedJob
from ascend.jobs.kind import Workload, as_watched
from ascend.jobs.templates import Count, PodTemplate
from ascend.kube.containers import Container, Resources
from ascend.kube.objects import KubeObject, Metadata, PodSpec

_KIND = "TrainJob"
_NODE = "node"
"""The template that every runtime of Kubeflow has for the nodes of a training."""


class _Trainer(msgspec.Struct, rename="camel", frozen=True):
    num_nodes: Count = 1
    resources_per_node: Resources = Resources()


class _TrainJobSpec(msgspec.Struct, frozen=True):
    trainer: _Trainer = _Trainer()
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}

    def create(self, controller: Controller) -> Iterator[KubeObject]:
        """Yield the JobSet with a Job of the nodes; steps that only the runtime describes are not known."""
        container = Container(_NODE, self.trainer.resources_per_node)
        template = PodTemplate(Metadata(), PodSpec(containers=(container,)))
        nodes = self.trainer.num_nodes
        job = JobTemplate(BatchJobTemplate(template, nodes, nodes))
        spec = JobSetSpec(replicated_jobs=[ReplicatedJob(_NODE, job)])
        owner = controller._replace(labels=self.labels, annotations=self.annotations)
        yield as_watched(JobSet, owner.metadata_with_labels("JobSet", controller.name), spec)
        yield from spec.create(controller.child("jobset.x-k8s.io/v1alpha2", "JobSet", controller.name))


WORKLOADS: Final = (
    Workload(
        _KIND,
        "trainer.kubeflow.org/v1alpha1",
        _TrainJobSpec,
        "`trainer.numNodes`, with `resourcesPerNode`, of its JobSet; what only the runtime says is not known",
        creates="Job",
        infix=f"-{_NODE}-",
    ),
)

"""A job as a gRPC caller describes it, before any of its pods exists."""

from allocator.rules.validity import invalidity, job_shape
from ascend.errors import Refusal
from ascend.kube.objects import Container, Metadata, Pod, PodSpec, Resources
from protos.ascend.allocator.v1 import allocator_pb2 as pb


def job_obstacle(job: pb.ValidateJobRequest) -> Refusal | None:
    """Why a job makes no sense wherever it is placed; None where it does, or asks for no chips."""
    try:
        shape = job_shape(f"job {job.job or '(without a name)'}", _pods(job))
    except Refusal as refusal:
        return refusal
    return invalidity(shape) if shape.sizes or shape.virtual else None


def _pods(job: pb.ValidateJobRequest) -> list[Pod]:
    """The pods of a job as if they existed."""
    namespace, _, name = job.job.rpartition("/")
    pods: list[Pod] = []
    for ask in job.pods:
        resources = {resource: str(count) for resource, count in ask.resources.items()}
        pod = Pod(
            metadata=Metadata(
                name=name, namespace=namespace, annotations=dict(ask.annotations), labels=dict(ask.labels)
            ),
            spec=PodSpec(
                node_selector=dict(ask.node_selector), containers=[Container("main", Resources(limits=resources))]
            ),
        )
        # For validity two pods are as many as thousands.
        pods += [pod] * min(max(ask.replicas, 1), 2)
    return pods

"""What kind of servers the pods of a job are on: those still to come have to join them.

Pods that talk to each other are of no use on servers of different products: their chips differ in speed, memory and
network. The reference never mixes them, since there a job has one rule (spec/scheduling.md §3.3).
"""

from allocator.state.cluster import Cluster
from allocator.state.jobs import Job
from allocator.state.ledger import Ledger
from ascend.errors import Refusal


def peer_products(job: Job, uid: str, cluster: Cluster, ledger: Ledger) -> frozenset[str] | None:
    """The names of the products that the other pods of a job are on, or have their places on.

    A node that is unknown, or says nothing of use of its chips, tells no product. Peers that are on several products
    already were bound by others: then any of these will do, for the job can't be put right by keeping a pod from it.

    Args:
        job: the job.
        uid: of the pod whose peers are meant.
        cluster: what is seen.
        ledger: what is decided.

    Returns:
        None where nobody has a place yet, or nobody knows on what.
    """
    products: set[str] = set()
    for each in job.pods.values():
        if each.uid == uid or not each.asks_for_chips or not each.is_live:
            continue
        node = each.spec.node_name or (held.node if (held := ledger.get(each.uid)) is not None else "")
        record = cluster.nodes.get(node)
        if record is not None and not isinstance(record.server, Refusal):
            products.add(record.server.product.name)
    return frozenset(products) or None

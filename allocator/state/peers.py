"""What kind of servers the pods of a job are on: those still to come have to join them.

Pods that talk to each other are of no use on servers of different products: their chips differ in speed, memory and
network. The reference never mixes them, since there a job has one rule (spec/scheduling.md §3.3).
"""

from allocator.state.cluster import Cluster
from allocator.state.jobs import Job
from allocator.state.ledger import Ledger


def peer_products(job: Job, uid: str, cluster: Cluster, ledger: Ledger) -> frozenset[str] | None:
    """The names of the products that the other pods of a job are on, or have their places on.

    A node that is cordoned or not Ready still counts. One that is unknown, or says nothing of use of its chips, tells
    no product: its pods keep nobody from any server. Peers that are on several products already were bound by others:
    any of these will do then, since keeping a pod from them all would not put the job right.

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
        if record is not None and record.product is not None:
            products.add(record.product.name)
    return frozenset(products) or None

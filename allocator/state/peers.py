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
        None where nobody has a place yet, or nobody knows on what; and where all servers are of one product anyway.
    """
    if not cluster.is_mixed:
        return None
    products: set[str] = set()
    nodes = cluster.nodes
    # The cheapest questions first: the job may have thousands of pods, and they are all on one product.
    for each in job.pods.values():
        node = each.spec.node_name
        if not node:
            held = ledger.get(each.uid)
            if held is None:
                continue
            node = held.node
        record = nodes.get(node)
        if record is None or record.product is None or record.product.name in products:
            continue
        if each.uid != uid and each.asks_for_chips and each.is_live:
            products.add(record.product.name)
    return frozenset(products) or None

"""What kind of servers the pods of a job are on: those still to come have to join them, so the first chooses for all.

Pods that talk to each other are of no use on servers of different products: their chips differ in speed, memory and
network. The reference never mixes them, since there a job has one rule (spec/scheduling.md §3.3).
"""

from collections import Counter
from collections.abc import Iterable

from allocator.rules.request import Ask
from allocator.rules.vacancy import Fit, capacity
from allocator.state.cluster import Cluster
from allocator.state.index import NodeIndex
from allocator.state.jobs import Job
from allocator.state.ledger import Ledger
from allocator.state.ranking import Bucket
from ascend.products import PRODUCTS


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


def product_for_all(count: int, ask: Ask, index: NodeIndex, names: Iterable[str] | None) -> str | None:
    """The first product, in the order of preference, whose servers take all the pods of a job now; None: none does.

    Nothing is kept for those that are still to come. Nodes that have the same left are counted together.

    Args:
        count: how many pods the job has.
        ask: what each of them asks for.
        index: the nodes.
        names: of the only nodes for them; None for all.
    """
    standing, ranking = index.standing, index.ranking(ask)
    room: Counter[str] = Counter()
    places = Counter(map(standing.get, names)) if names is not None else {each: len(each) for each in index.buckets}
    for place, nodes in places.items():
        if isinstance(place, Bucket) and isinstance(ranking.verdict(place), Fit):
            room[place.vacancy.product.name] += nodes * capacity(place.vacancy, ask)
    return next((name for name in PRODUCTS if room[name] >= count), None)

"""The table of reasons for which requests are refused or calls fail, with their categories.

A reason is a stable word for programs; the sentence that goes with it (``Refusal.message``) names objects and numbers.
Code that treats reasons differently uses the category or the actor of a reason instead of listing words.
``docs/reasons.md`` is generated from this module.
"""

from enum import StrEnum
from typing import Final, Self


class Category(StrEnum):
    """What a reason is about; the value is the heading of its table in ``docs/reasons.md``."""

    REQUEST = "The request is invalid: no node can help"
    """Neither freeing chips nor changing nodes makes the pod fit."""

    INCOMPLETE = "The job is not complete"
    """The pod waits for objects of its job that do not exist yet; freeing chips does not help."""

    PLACEMENT = "The pod or its job as a whole"
    """Summaries over many nodes, and pods that are placed or gone."""

    OCCUPIED = "The node is occupied: the pod fits when other pods end"
    """Freeing chips, by waiting or by preemption, makes the pod fit."""

    MISMATCH = "The node is not meant for this pod"
    """Nothing is wrong with the node."""

    NOT_NPU = "The node is not an NPU node"
    """Left out where only NPU nodes are of interest."""

    NODE = "The node can't be used: an administrator has to act"
    """Something is wrong with the node, or it was taken out of use."""

    ALLOCATOR = "The allocator or the API server"
    """The question could not be answered, or the Binding not be posted."""

    ADMISSION = "The device plugin refuses the container"
    """Shown by the kubelet as ``UnexpectedAdmissionError``; the pod has failed."""

    DRIVER = "The driver's library can't be used"
    """Shown by the device plugin's log and by ``npuctl doctor``."""


class Actor(StrEnum):
    """Who has to act; the value is a cell of ``docs/reasons.md``."""

    AUTHOR = "the pod's author"
    ADMINISTRATOR = "an administrator"
    DEVELOPER = "the caller's developer"
    NOBODY = "nobody"


_API_MEANING: Final = (
    "the API server refused the request; the sentence is its own. Other reasons of the API server occur as well"
)
_API_CURE: Final = "see the sentence"


class Reason(StrEnum):
    """A reason: its value is the word.

    Attributes:
        category: what it is about.
        actor: who has to act.
        meaning: what it means, a sentence for the documentation.
        cure: what helps, a sentence for people; shown by ``npuctl`` as well.
    """

    category: Category
    actor: Actor
    meaning: str
    cure: str

    def __new__(cls, word: str, category: Category, actor: Actor, meaning: str, cure: str) -> Self:
        """Make a member whose value is its word."""
        member = str.__new__(cls, word)
        member._value_ = word
        member.category = category
        member.actor = actor
        member.meaning = meaning
        member.cure = cure
        return member

    # A table: word, category, actor; what it means; what helps.
    # fmt: off
    INVALID_REQUEST = ("InvalidRequest", Category.REQUEST, Actor.AUTHOR,
        "no server takes that number of chips, or not from a job of this shape; the quantity is not a whole number; "
        "whole chips and vNPUs are mixed; more than one vNPU is requested; the annotation that names its pod group is "
        "no name; the pod's uid is missing; the pods of a workload of Kueue can't be known from its job",
        "change the request; the sentence says which numbers are allowed")
    UNKNOWN_PRODUCT = ("UnknownProduct", Category.REQUEST, Actor.AUTHOR,
        "the node selector `accelerator-type` (or a node's label `accelerator` or `accelerator-type`) has an unknown "
        "value",
        "correct it; the sentence has the known values")
    PRODUCT_NOT_NAMED = ("ProductNotNamed", Category.REQUEST, Actor.AUTHOR,
        "the cluster has servers of several products, and a job of several pods does not say which of them it is for",
        "set the node selector `accelerator-type` or the annotation `huawei.com/schedule_policy` in the pod template, "
        "or set `default_product` in the allocator's settings")
    UNKNOWN_POLICY = ("UnknownPolicy", Category.REQUEST, Actor.AUTHOR,
        "the annotation `huawei.com/schedule_policy` has an unknown value; the sentence lists the known ones",
        "correct it, or remove it")
    UNSUPPORTED_POLICY = ("UnsupportedPolicy", Category.REQUEST, Actor.AUTHOR,
        "MindCluster knows the policy, but this allocator has no rule for it; or a job for other servers than A3 and "
        "Atlas 850 requests nodes of one SuperPod (`sp-block`, a policy that ends in `-sp`, an `accelerator-type` that "
        "ends in `-super-pod`); or a label requests something else that is missing here, as `tor-affinity` does",
        "remove it; without it the rule of the node decides")
    POLICY_MISMATCH = ("PolicyMismatch", Category.REQUEST, Actor.AUTHOR,
        "node selector and policy, or the pods of one job, name different products",
        "make them agree")
    INVALID_MIN_AVAILABLE = ("InvalidMinAvailable", Category.REQUEST, Actor.AUTHOR,
        "`huawei.com/schedule_minAvailable` (or another number of pods that start together) is not a positive number, "
        "or the pods can never exist together: a StatefulSet with `podManagementPolicy: OrderedReady` creates them in "
        "turn, and a pod without an owner and a pod group is a job of its own. Or it is more than Bindings may be held "
        "at a time (28,672 over TLS, 14,336 without certificates)",
        "correct it; a StatefulSet with a minimum needs `podManagementPolicy: Parallel`, pods without an owner need a "
        "pod group")

    GROUP_MISSING = ("GroupMissing", Category.INCOMPLETE, Actor.AUTHOR,
        "the pod names a PodGroup that does not exist, or the object of its operator, as a PyTorchJob, is not known "
        "yet; so the number of pods to place together is unknown",
        "create the PodGroup, or correct the name; else wait")
    SWITCHES_UNKNOWN = ("SwitchesUnknown", Category.INCOMPLETE, Actor.ADMINISTRATOR,
        "the job asks for switch affinity (`tor-affinity`), and which servers are below which leaf switch is unknown: "
        "the ConfigMap `basic-tor-node-cm` in `kube-system` does not exist, or no server can be read from it; the "
        "sentence says why",
        "create or correct the ConfigMap; or remove the label, or set it to null")
    GANG_INCOMPLETE = ("GangIncomplete", Category.INCOMPLETE, Actor.AUTHOR,
        "fewer pods exist than must be placed together; the sentence has both numbers. Failed and terminating pods "
        "and those with scheduling gates don't count",
        "wait for the other pods; check why their controller creates no more")

    NO_NODE_FITS = ("NoNodeFits", Category.PLACEMENT, Actor.NOBODY,
        "the pod fits on no node, for several reasons; the sentence counts them",
        "see those reasons")
    GANG_DOES_NOT_FIT = ("GangDoesNotFit", Category.PLACEMENT, Actor.NOBODY,
        "the pods that must be placed together don't fit at the same time; the sentence says how many do, and why "
        "nodes refuse the next one. Other pods are preempted only if all of them fit then",
        "wait, or request fewer pods or chips")
    GANG_STEPPED_BACK = ("GangSteppedBack", Category.PLACEMENT, Actor.NOBODY,
        "the scheduler refused some pods of the gang for reasons of its own (CPU, affinity, host ports, taints) while "
        "others waited to be bound, or came to no further one of them; so the gang has released its chips. It tries "
        "again, one such gang after the other. Or it refuses a pod that the gang needs on every node; then the gang "
        "gets no chips until that changes. Or another gang has stepped back, and comes first on the nodes where this "
        "one would fit",
        "wait; if it comes again and again, the message of the pods' condition PodScheduled says what the scheduler "
        "lacks")
    GANG_AWAITED = ("GangAwaited", Category.PLACEMENT, Actor.NOBODY,
        "the pod has a node and chips, and its scheduler accepted it there, but has not come to all pods of the gang "
        "while the Binding was held (`gang_hold_s`). The pod keeps its seat, and is bound together with the others",
        "nothing to do; if it stays so, look at the pods of the gang that have another reason, or none")
    REFUSED_BY_SCHEDULER = ("RefusedByScheduler", Category.PLACEMENT, Actor.AUTHOR,
        "what the pod requests is free, but its scheduler refuses the pod, or a pod that its gang needs, on every node "
        "by its own filters (CPU, memory, taints, affinity, volumes), so it does not ask the allocator; or it does not "
        "try the pod at all",
        "the sentence has what the scheduler says; if it has not tried the pod, see whether it runs")
    PLACED_WITH_GANG = ("PlacedWithGang", Category.PLACEMENT, Actor.NOBODY,
        "(on all nodes but one) the pod's node was chosen together with those of its gang; it is another one",
        "nothing to do")
    ALREADY_PLACED = ("AlreadyPlaced", Category.PLACEMENT, Actor.NOBODY,
        "the pod is bound to another node, or its Binding is in flight",
        "nothing to do")
    POD_GATED = ("PodGated", Category.PLACEMENT, Actor.NOBODY,
        "the pod has scheduling gates, which the API server does not bind; for its job it is not there yet",
        "wait until whoever set the gates removes them, as Kueue does when it admits the job")
    POD_FINISHED = ("PodFinished", Category.PLACEMENT, Actor.NOBODY,
        "the pod has succeeded or failed",
        "nothing to do: it needs no chips")
    POD_GONE = ("PodGone", Category.PLACEMENT, Actor.NOBODY,
        "the pod with this uid was deleted; a pod with the same name may exist",
        "nothing to do: its scheduler will notice")

    NOT_ENOUGH_CHIPS = ("NotEnoughChips", Category.OCCUPIED, Actor.NOBODY,
        "fewer chips are free than requested; for a job of several pods, chips whose network is unhealthy don't count",
        "wait, request fewer chips, or repair the network")
    CHIPS_KEPT = ("ChipsKept", Category.OCCUPIED, Actor.NOBODY,
        "the pod would fit, but chips that are free are kept for a pod or a gang that has preempted others, or for the "
        "job that comes first, for which nodes drain; the sentence names it",
        "wait until that has started, or use a higher priority")
    RING_TOO_SMALL = ("RingTooSmall", Category.OCCUPIED, Actor.NOBODY,
        "enough chips are free, but not within one HCCS ring (910A: 0-3 and 4-7; 910B with 16 chips: 0-7 and 8-15)",
        "wait, or delete a smaller pod on that ring")
    PAIRS_BROKEN = ("PairsBroken", Category.OCCUPIED, Actor.NOBODY,
        "910B with 16 chips, more than 8 requested: too few pairs of chips i and i+8 are free",
        "wait, or delete a pod on the other half of a pair")
    CARDS_BROKEN = ("CardsBroken", Category.OCCUPIED, Actor.NOBODY,
        "A3, more than one chip requested: too few cards have both dies free",
        "wait, or delete a pod of one chip")
    MESH_TOO_SMALL = ("MeshTooSmall", Category.OCCUPIED, Actor.NOBODY,
        "boards with meshes of 4: no mesh has that many free chips, or too few meshes are entirely free",
        "wait, or delete a smaller pod on that mesh")
    NO_FREE_VNPU = ("NoFreeVnpu", Category.OCCUPIED, Actor.NOBODY,
        "all vNPUs of the size that the pod requests are in use, or on unhealthy chips; or no chip has enough AI "
        "cores, AI CPUs or media units left",
        "wait, or delete a pod that has one")
    NO_ROOM_AT_KUBELET = ("NoRoomAtKubelet", Category.OCCUPIED, Actor.NOBODY,
        "the chips or vNPUs are free, but the kubelet still counts those of a pod that is terminating",
        "wait a moment")

    WRONG_PRODUCT = ("WrongProduct", Category.MISMATCH, Actor.NOBODY,
        "the job is for servers of another product, by its node selector, its policy or the setting `default_product`",
        "nothing to do, unless the node's label is wrong")
    NO_SUCH_VNPU = ("NoSuchVnpu", Category.MISMATCH, Actor.NOBODY,
        "the node has no vNPU of the size that the pod requests, or its chips can't be cut so; the sentence says "
        "what it has",
        "nothing to do, if other nodes have some; else cut a chip into that size, which is offered within a minute; or "
        "request a number of AI cores that the sentence names")
    PEER_ON_NODE = ("PeerOnNode", Category.MISMATCH, Actor.NOBODY,
        "another pod of the job is on the node, and its product takes one pod of a job of several pods (910A, A3)",
        "nothing to do, if other nodes have room; the setting `sharing_products` allows several")
    NODE_SELECTOR_MISMATCH = ("NodeSelectorMismatch", Category.MISMATCH, Actor.NOBODY,
        "(`npuctl` only: schedulers filter such nodes out before) the pod's node selector or required node affinity "
        "excludes the node; the sentence names the labels of a selector",
        "label the node, or correct selector or affinity")

    NOT_AN_NPU_NODE = ("NotAnNpuNode", Category.NOT_NPU, Actor.NOBODY,
        "the node reports no chips: it has neither the annotation `baseDeviceInfos` nor a device report",
        "run the device plugin on it, if it has NPUs")
    UNKNOWN_NODE = ("UnknownNode", Category.NOT_NPU, Actor.NOBODY,
        "the node does not exist, or the informers have not seen it yet",
        "nothing to do")

    NO_BASE_DEVICE_INFOS = ("NoBaseDeviceInfos", Category.NODE, Actor.ADMINISTRATOR,
        "the annotation is missing, and the device report (which leaves out chips in use) and the pods on the node "
        "together name fewer chips than the kubelet has",
        "restart the device plugin of that node: it writes the annotation. Without a restart the refusal ends with "
        "the first report after a pod has ended")
    PRODUCT_MISMATCH = ("ProductMismatch", Category.NODE, Actor.ADMINISTRATOR,
        "the node's label `accelerator-type` and the chips it reports contradict each other",
        "correct the label, or find the missing chips")
    RESOURCE_NOT_OFFERED = ("ResourceNotOffered", Category.NODE, Actor.ADMINISTRATOR,
        "the kubelet has no allocatable chips now, or has them as AI cores only; it would start the pod without any",
        "check the device plugin of that node: `npuctl doctor` there says what is wrong; or request AI cores, if the "
        "sentence names these")
    CHIPS_NOT_DIVISIBLE = ("ChipsNotDivisible", Category.NODE, Actor.ADMINISTRATOR,
        "the node offers AI cores, but its labels `servertype` and `mind-cluster/npu-chip-memory` name no chip that "
        "can be cut while pods run",
        "correct the labels; the device plugin writes them")
    INCONSISTENT_CAPACITY = ("InconsistentCapacity", Category.NODE, Actor.ADMINISTRATOR,
        "the node has more allocatable chips than capacity, or offers both chips and AI cores",
        "check the kubelet of that node")
    NODE_NOT_READY = ("NodeNotReady", Category.NODE, Actor.ADMINISTRATOR,
        "the node's condition Ready is not True",
        "check the kubelet of that node")
    NODE_CORDONED = ("NodeCordoned", Category.NODE, Actor.ADMINISTRATOR,
        "the node is cordoned (`spec.unschedulable`)",
        "`kubectl uncordon` it, if its maintenance is over")
    NODE_UNHEALTHY = ("NodeUnhealthy", Category.NODE, Actor.ADMINISTRATOR,
        "the annotation `NodeHealthyStatus`, NodeD's ConfigMap `mindx-dl-nodeinfo-<node>` or the switches in the "
        "device report say so",
        "repair what they name")
    NODE_SEPARATING = ("NodeSeparating", Category.NODE, Actor.ADMINISTRATOR,
        "the same sources say `PreSeparate`: running pods may continue, no new pod starts",
        "repair what they name")
    NODE_SUB_HEALTHY = ("NodeSubHealthy", Category.NODE, Actor.ADMINISTRATOR,
        "the node or one of its chips is degraded, and the job's label `subHealthyStrategy` is not `ignore`",
        "repair the node, or label the job `ignore`")
    INVALID_REPORT = ("InvalidReport", Category.NODE, Actor.ADMINISTRATOR,
        "the node's annotation, its device report (a list that forbids chips, or the chip or level of a fault) or "
        "NodeD's ConfigMap is malformed, a CheckCode is wrong, or more chips are reported than such a server has",
        "check the object that is named; if somebody has edited the device report, delete the ConfigMap: the device "
        "plugin writes it again")
    STALE_REPORT = ("StaleReport", Category.NODE, Actor.ADMINISTRATOR,
        "the node's report is no longer renewed: its device plugin has ended, or was silent for `max_report_age_s`",
        "check the device plugin of that node: `npuctl doctor` there says what is wrong")
    UNREADABLE_POD = ("UnreadablePod", Category.NODE, Actor.ADMINISTRATOR,
        "a pod on the node holds chips or a vNPU, but its annotations don't say which",
        "delete the pod that is named; it was not bound by the allocator: its scheduler does not ask it, or the "
        "resource is missing in `managedResources` (deploy/charts/ascend-affinity/kube-scheduler.yaml)")

    VIEW_INCOMPLETE = ("ViewIncomplete", Category.ALLOCATOR, Actor.NOBODY,
        "the allocator's informers have not synced yet",
        "wait; `/readyz` says which informer is missing")
    NOT_LEADER = ("NotLeader", Category.ALLOCATOR, Actor.NOBODY,
        "this allocator is a standby, or has lost the lease, or may have; nothing was done",
        "call the leader: the Service points to it. A new one leads within seconds after a leader has stopped")
    CLIENT_NOT_ALLOWED = ("ClientNotAllowed", Category.ALLOCATOR, Actor.ADMINISTRATOR,
        "the client shows no certificate, or one with none of the names in `client_names` (for the webhooks "
        "`webhook_client_names`)",
        "give it a certificate with an allowed name ([allocator.md](allocator.md#who-may-call-it))")
    SCHEDULER_NOT_SERVED = ("SchedulerNotServed", Category.ALLOCATOR, Actor.ADMINISTRATOR,
        "the pod's `schedulerName` is not in the setting `scheduler_names`: the extender and gRPC place and bind only "
        "pods of these schedulers",
        "if its scheduler calls this allocator, add the name to `scheduler_names` (in the chart "
        "`allocator.schedulerNames`); else take the extender out of the configuration of the scheduler that called")
    SCHEDULER_NOT_CONNECTED = ("SchedulerNotConnected", Category.ALLOCATOR, Actor.ADMINISTRATOR,
        "the pod's scheduler has bound another pod without calling the allocator, and the node of that has refused it "
        "(`NotPlaced`): a pod that a controller creates would fail like it, and the next one, without an end. The "
        "webhook for pods denies it; the controller tries again later",
        "connect the scheduler (docs/kube-scheduler.md), or name a connected one in `schedulerName`; then create a pod "
        "without a controller, as the first call ends the denial, and delete the failed pods, upon which their "
        "controllers try again at once")
    POD_UNKNOWN = ("PodUnknown", Category.ALLOCATOR, Actor.DEVELOPER,
        "the API server has no pod with this namespace, name and uid; or Volcano asks for one that the allocator's "
        "informers have not seen yet",
        "nothing to do if the pod was deleted, or if Volcano asks: it asks again; else correct the caller")
    NOT_RESERVED = ("NotReserved", Category.ALLOCATOR, Actor.DEVELOPER,
        "gRPC Confirm: no chips are reserved for this pod; another pod may have them by now",
        "call Allocate again")
    DEADLINE_TOO_SHORT = ("DeadlineTooShort", Category.ALLOCATOR, Actor.DEVELOPER,
        "gRPC: the caller's deadline leaves no time for a Binding, so none was posted",
        "use a longer deadline")
    INVALID_VALUE = ("InvalidValue", Category.ALLOCATOR, Actor.DEVELOPER,
        "the call itself is malformed",
        "correct the caller; the sentence names field and value")
    UNREACHABLE = ("Unreachable", Category.ALLOCATOR, Actor.NOBODY,
        "the API server did not answer in time; the pod may be bound nevertheless, and its chips stay reserved until "
        "that is known",
        "nothing to do")
    CONFLICT = ("Conflict", Category.ALLOCATOR, Actor.ADMINISTRATOR, _API_MEANING, _API_CURE)
    NOT_FOUND = ("NotFound", Category.ALLOCATOR, Actor.ADMINISTRATOR, _API_MEANING, _API_CURE)
    UNAUTHORIZED = ("Unauthorized", Category.ALLOCATOR, Actor.ADMINISTRATOR, _API_MEANING, _API_CURE)
    THROTTLED = ("Throttled", Category.ALLOCATOR, Actor.ADMINISTRATOR, _API_MEANING, _API_CURE)
    API_ERROR = ("ApiError", Category.ALLOCATOR, Actor.ADMINISTRATOR, _API_MEANING, _API_CURE)

    NOT_PLACED = ("NotPlaced", Category.ADMISSION, Actor.ADMINISTRATOR,
        "the pod has no annotation with its chips: the allocator did not place it. Most likely its scheduler does not "
        "call the allocator",
        "connect its scheduler (docs/kube-scheduler.md), or name a connected one in `schedulerName`; don't set "
        "`nodeName` by hand; without an allocator, set the device plugin's `choose_chips`")
    STATIC_POD = ("StaticPod", Category.ADMISSION, Actor.AUTHOR,
        "the pod comes from a file of the node; the allocator can't place it, because the API server learns of it only "
        "once it runs",
        "create it through the API server, as a Deployment or a DaemonSet; a static pod must not request chips")
    MALFORMED_ANNOTATION = ("MalformedAnnotation", Category.ADMISSION, Actor.AUTHOR,
        "the annotation with the pod's chips can't be read",
        "create the pod again, and don't write that annotation")
    WRONG_COUNT = ("WrongCount", Category.ADMISSION, Actor.AUTHOR,
        "the annotation names another number of chips than the pod requests",
        "create the pod again, and don't write that annotation")
    UNKNOWN_CHIP = ("UnknownChip", Category.ADMISSION, Actor.ADMINISTRATOR,
        "the pod's annotation names chips that the node does not have",
        "create the pod again; report it if it happens to pods that the allocator placed")
    CHIP_RESETTING = ("ChipResetting", Category.ADMISSION, Actor.NOBODY,
        "a chip of the pod is being reset, because it or a chip that is reset together with it has a fault",
        "wait: its controller creates a new pod, which gets other chips, or these once they have started again")
    CHIP_UNHEALTHY = ("ChipUnhealthy", Category.ADMISSION, Actor.NOBODY,
        "a chip of the pod has become unhealthy since the pod was placed",
        "create the pod again: it gets other chips")
    CHIP_HELD = ("ChipHeld", Category.ADMISSION, Actor.NOBODY,
        "a chip of the pod is held by another live pod, which the sentence names",
        "create the pod again: it gets other chips")
    SEGMENT_FAILED = ("NPUSegmentFailed", Category.ADMISSION, Actor.NOBODY,
        "the driver has not created the vNPU of the pod, or not in time; the sentence has its error. Volcano knows the "
        "word",
        "create the pod again; if it happens again, look into the log of the device plugin of that node")
    NO_RESOURCE = ("NoNPUResource", Category.ADMISSION, Actor.NOBODY,
        "the node does not have the chip on which the pod is to get a vNPU, or too little is left of it. Volcano knows "
        "the word",
        "create the pod again: it gets a vNPU of another chip")
    CHIP_NOT_FREED = ("ChipNotFreed", Category.ADMISSION, Actor.NOBODY,
        "the kubelet has restarted and does not offer a chip of the pod yet, because it still counts it to a pod that "
        "has ended",
        "create the pod again: a new pod gets the chip")
    NO_CHIPS_LEFT = ("NoChipsLeft", Category.ADMISSION, Actor.NOBODY,
        "the chips of the container were handed to other containers of its pod",
        "create the pod again; report it if it happens again")
    NO_SUCH_POD = ("NoSuchPod", Category.ADMISSION, Actor.NOBODY,
        "no pod on the node waits for that number of chips, or the pod has ended before it got them",
        "create the pod again")
    API_SERVER_AWAY = ("ApiServerAway", Category.ADMISSION, Actor.NOBODY,
        "the device plugin does not know the pod, and neither the kubelet nor the API server can be asked",
        "create the pod again when the API server is back")
    TIMED_OUT = ("TimedOut", Category.ADMISSION, Actor.NOBODY,
        "the device plugin could not decide within the time the kubelet may be made to wait",
        "create the pod again")
    NOT_READY = ("NotReady", Category.ADMISSION, Actor.NOBODY,
        "the device plugin has not read the driver yet",
        "create the pod again once the device plugin is ready")
    UNKNOWN_DEVICE = ("UnknownDevice", Category.ADMISSION, Actor.ADMINISTRATOR,
        "the kubelet names no device, or one that is not a chip",
        "check the kubelet of that node")
    DEVICE_NODE_MISSING = ("DeviceNodeMissing", Category.ADMISSION, Actor.ADMINISTRATOR,
        "a device node in `/dev` is missing",
        "load the NPU driver")
    CDI_FILE_NOT_WRITTEN = ("CdiFileNotWritten", Category.ADMISSION, Actor.ADMINISTRATOR,
        "the CDI specification can't be written",
        "correct the permissions of the folder that is named")
    INTERNAL = ("Internal", Category.ADMISSION, Actor.DEVELOPER,
        "the device plugin failed; its log has the error",
        "report it")

    LIBRARY_NOT_FOUND = ("LibraryNotFound", Category.DRIVER, Actor.ADMINISTRATOR,
        "the driver's library is in none of the folders searched",
        "install the driver, and mount it into the device plugin's pod")
    LIBRARY_UNUSABLE = ("LibraryUnusable", Category.DRIVER, Actor.ADMINISTRATOR,
        "the driver's library can't be loaded",
        "reinstall the driver")
    UNTRUSTED_FILE = ("UntrustedFile", Category.DRIVER, Actor.ADMINISTRATOR,
        "others than root may write to the library or to a folder above it: it is not loaded, because it runs as root",
        "`chown root` and `chmod go-w` what the sentence names")
    # fmt: on

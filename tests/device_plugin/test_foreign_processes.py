"""Processes on chips that nobody was given are told, and change nothing else."""

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from ascend.daemon.observable import Observable
from ascend.errors import DriverError
from device_plugin import processes
from device_plugin.driver import ChipFacts
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.health.snapshot import Snapshot
from device_plugin.ledger.allocations import Allocation, Allocations
from device_plugin.ledger.ledgers import Ledgers
from device_plugin.ledger.node_pods import NodePods
from device_plugin.metrics import Metrics
from device_plugin.processes import UNKNOWN, Owner, ProcessWatch, owner_of, sees_node
from tests.device_plugin.api import running, seen
from tests.device_plugin.builders import pod, snapshot
from tests.device_plugin.whole import whole_node

UID = "3f2a9c1e-0b1d-4c5e-8f6a-7b8c9d0e1f2a"


@pytest.mark.parametrize(
    ("cgroup", "owner"),
    [
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{64 * 'a'}.scope\n", UID),
        (f"12:devices:/kubepods/burstable/pod{UID}/{64 * 'a'}\n0::/init.scope\n", UID),
        (f"0::/../../kubepods-besteffort-pod{UID.replace('-', '_')}.slice/cri-containerd-{64 * 'b'}.scope\n", UID),
        (f"0::/kubepods/pod{32 * '0'}/{64 * 'c'}\n", 32 * "0"),
        (f"0::/system.slice/docker-{64 * 'd'}.scope\n", "container"),
        (f"0::/default/{64 * 'e'}\n", "container"),
        ("0::/user.slice/user-0.slice/session-3.scope\n", "node"),
        ("0::/system.slice/podman.service\n", "node"),
        ("", "node"),
        ("\udcff\n", "node"),
    ],
)
def test_the_owner_of_a_process_is_read_from_its_control_group(tmp_path: Path, cgroup: str, owner: str) -> None:
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / "cgroup").write_bytes(cgroup.encode(errors="surrogateescape"))
    found = owner_of(11, tmp_path)
    assert found == (Owner("pod", owner) if len(owner) >= 32 else Owner(owner))  # type: ignore[arg-type]
    assert owner_of(12, tmp_path) == UNKNOWN


@pytest.mark.parametrize(("ids", "kind"), [("4711", "node"), ("4711\t1", "container"), ("4711\t12\t1", "container")])
def test_a_process_with_ids_of_its_own_is_a_containers(tmp_path: Path, ids: str, kind: str) -> None:
    (tmp_path / "11").mkdir()
    (tmp_path / "11" / "cgroup").write_text("0::/default/named-by-people\n")
    (tmp_path / "11" / "status").write_text(f"Name:\tpython3\nNSpid:\t{ids}\n")
    assert owner_of(11, tmp_path) == Owner(kind)  # type: ignore[arg-type]  # one of its kinds


@pytest.mark.parametrize(("name", "is_node"), [("kthreadd\n", True), ("sleep\n", False), (None, False)])
def test_process_ids_are_those_of_the_node_if_its_kernel_threads_are_seen(
    tmp_path: Path, name: str | None, *, is_node: bool
) -> None:
    if name is not None:
        (tmp_path / "2").mkdir()
        (tmp_path / "2" / "comm").write_text(name)
    assert sees_node(tmp_path) == is_node


class Driver(SimulatedDriver):
    """Lists the processes that the test says."""

    def __init__(self) -> None:
        super().__init__(Path("unused"))
        self.processes: dict[int, tuple[int, ...]] = {}
        self.problem = ""

    def users(self, chip: ChipFacts) -> tuple[int, ...]:
        if self.problem:
            raise DriverError(self.problem)
        return self.processes.get(chip.phy_id, ())


class Rig:
    """A watch of processes, without a node."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.allocations = Allocations()
        self.pods = NodePods(self.allocations.drop)
        self.owners: dict[int, Owner] = {}
        self.told: list[str] = []
        self.off_limits = 0
        self.pauses = False
        self.metrics = Metrics()
        snapshots: Observable[Snapshot | None] = Observable(snapshot())
        self.watch = ProcessWatch(
            self.driver,
            snapshots,
            Ledgers(self.pods, self.allocations),
            lambda reason, sentence, _warning: self.told.append(f"{reason}: {sentence}"),
            self.metrics,
            off_limits=lambda: self.off_limits,
            pauses=lambda: self.pauses,
            owners=self._owners,
        )

    def _owners(self, processes: tuple[int, ...]) -> Mapping[int, Owner]:
        return {each: self.owners[each] for each in processes if each in self.owners}

    def give(self, name: str, *chips: int) -> None:
        """Let a pod run with chips."""
        self.pods.on_apply(pod(name, len(chips), *chips, started=True))
        if chips:
            self.allocations.add(Allocation(f"uid-{name}", f"default/{name}", chips, chips))

    async def wait(self, time_s: float) -> None:
        """Let time pass."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + time_s
        while loop.time() < until_s:
            await asyncio.sleep(processes.LOOK_S / 2)
            while self.watch._calls:  # noqa: ASYNC110 - the threads of calls know no virtual time
                await asyncio.sleep(0)

    def counted(self, chip: int) -> float | None:
        """The value of the metric for a chip."""
        return self.metrics.registry.get_sample_value("ascend_dp_foreign_processes", {"chip": f"Ascend910-{chip}"})


LONG_S = 2 * processes.GRACE_S


@pytest.mark.looptime
async def test_a_process_on_a_chip_that_nobody_was_given_is_told_once() -> None:
    rig = Rig()
    rig.driver.processes[3] = (4711, 4712)
    async with running(rig.watch.run()):
        await rig.wait(processes.GRACE_S / 2)
        assert rig.told == []
        await rig.wait(LONG_S)
        (told,) = rig.told
        assert told == (
            "NPUForeignProcess: Ascend910-3: processes 4711, 4712 use it, but no pod was given it: a container may "
            "have named the chip in its environment, or mounted its device"
        )
        assert rig.counted(3) == 2
        await rig.wait(10 * processes.TELL_S)
        assert len(rig.told) == 1
        rig.driver.processes[3] = ()
        await rig.wait(LONG_S)
        assert rig.counted(3) == 0


@pytest.mark.looptime
async def test_processes_that_come_again_and_again_are_told_at_most_every_ten_minutes() -> None:
    rig = Rig()
    async with running(rig.watch.run()):
        for number in range(40):
            rig.driver.processes[3] = (1000 + number,)
            await rig.wait(LONG_S)
    assert 2 <= len(rig.told) <= 1 + 40 * LONG_S / processes.TELL_S


@pytest.mark.looptime
async def test_processes_of_the_pod_that_was_given_the_chip_are_not_told() -> None:
    rig = Rig()
    rig.give("owner", 3)
    rig.driver.processes[3] = (1, 2, 3)
    rig.owners = {1: Owner("pod", "uid-owner"), 2: Owner("node"), 3: UNKNOWN}
    async with running(rig.watch.run()):
        await rig.wait(5 * LONG_S)
    assert rig.told == []
    assert rig.counted(3) is None


@pytest.mark.looptime
@pytest.mark.parametrize(
    ("owner", "named"),
    [
        (Owner("pod", "uid-thief"), "pod default/thief"),
        (Owner("pod", "uid-x"), "a pod with the uid uid-x"),
        (Owner("container"), "a container that is no pod's"),
    ],
)
async def test_a_process_of_another_container_on_a_pods_chip_is_told(owner: Owner, named: str) -> None:
    rig = Rig()
    rig.give("owner", 3)
    rig.give("thief")
    rig.driver.processes[3] = (1, 2)
    rig.owners = {1: Owner("pod", "uid-owner"), 2: owner}
    async with running(rig.watch.run()):
        await rig.wait(LONG_S)
    (told,) = rig.told
    assert f"process 2 ({named}) uses it, but it was given to another pod" in told


@pytest.mark.looptime
async def test_processes_that_end_soon_after_their_pod_are_not_told() -> None:
    rig = Rig()
    rig.give("owner", 3)
    rig.driver.processes[3] = (1,)
    async with running(rig.watch.run()):
        await rig.wait(LONG_S)
        rig.pods.on_delete(pod("owner", 1, 3))
        await rig.wait(processes.GRACE_S / 2)
        rig.driver.processes[3] = ()
        await rig.wait(LONG_S)
        rig.driver.processes[3] = (1,)  # another process, with the id again
        await rig.wait(processes.GRACE_S / 2)
    assert rig.told == []


@pytest.mark.looptime
@pytest.mark.parametrize("why", ["reset", "other plugin", "unread"])
async def test_nothing_is_told_while_nothing_is_known_of_a_chip(why: str) -> None:
    rig = Rig()
    rig.driver.processes[3] = (1,)
    rig.off_limits = 0b1000 if why == "reset" else 0
    rig.pauses = why == "other plugin"
    rig.driver.problem = "no such call" if why == "unread" else ""
    async with running(rig.watch.run()):
        await rig.wait(5 * LONG_S)
        assert rig.told == []
        rig.off_limits, rig.pauses, rig.driver.problem = 0, False, ""
        await rig.wait(LONG_S)
        assert len(rig.told) == 1


async def test_a_foreign_process_is_an_event_and_a_metric_and_leaves_its_chip_free(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "LOOK_S", 0.02)
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    async with whole_node(folder) as whole, whole.plugin() as plugin:
        whole.node.edit_chip(5, processes=[4711])
        (note,) = await seen(lambda: whole.notes("NPUForeignProcess"), bool)
        assert note.startswith("Ascend910-5: process 4711")
        found = plugin.metrics.registry.get_sample_value("ascend_dp_foreign_processes", {"chip": "Ascend910-5"})
        assert found == 1
        assert (await whole.report()).free == 0xFF
        await whole.bind("one", 5)
        await whole.claimed("one")

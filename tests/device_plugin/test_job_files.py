import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

from ascend.annotations import Grant
from ascend.kube.objects import CONFIG_MAPS, PODS
from ascend.kube.reflector import Reflector
from ascend.rate_limiters import Backoff
from device_plugin.job_files import mirror
from device_plugin.job_files.folder import MirroredFolder
from device_plugin.job_files.mirror import JobFiles
from device_plugin.ledger.node_pods import NodePods
from sandbox.cluster import pod_manifest
from tests.device_plugin.api import NODE, RecordingClient, running, until
from tests.device_plugin.small_disk import SmallDisk
from tests.device_plugin.whole import whole_node

JOB = "volcano.sh/job-name"


def config_map(name: str, data: dict[str, str], **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "default", "labels": {"reset": "true", **labels}},
        "data": data,
    }


class Node:
    """The files of a node's jobs, and the ways to change them at the API server."""

    def __init__(self, client: RecordingClient, root: Path) -> None:
        self.client = client
        self.reset = root / "restore" / "reset"
        self.trace = root / "trace"

    def read(self, path: str) -> str | None:
        try:
            return (self.reset / path).read_text()
        except FileNotFoundError:
            return None

    async def run_pod(self, name: str, job: str = "llama", *, chips: int = 1, label: str = JOB) -> None:
        body = pod_manifest(name, chips)
        body["metadata"].setdefault("labels", {})[label] = job
        await self.client.create(PODS, body, "default")

    async def write(self, name: str, data: dict[str, str], **labels: str) -> None:
        await self.client.create(CONFIG_MAPS, config_map(name, data, **labels), "default")

    async def change(self, name: str, data: dict[str, str | None]) -> None:
        await self.client.patch(CONFIG_MAPS, name, {"data": data}, namespace="default")

    @asynccontextmanager
    async def mirroring(self) -> AsyncIterator[None]:
        pods = NodePods(on_gone=lambda _: None)
        watch = Reflector(self.client, PODS, pods)
        files = JobFiles(self.client, pods, reset_config_dir=self.reset, data_trace_dir=self.trace)
        async with running(watch.run()):
            await watch.synced.wait()
            async with running(files.run()):
                yield


@pytest.fixture
def node(client: RecordingClient, tmp_path: Path) -> Node:
    return Node(client, tmp_path)


RESET_FILE = "default.reset-config-llama/reset.json"
TYPE_FILE = "default.reset-config-llama/restartType"


async def test_the_config_maps_of_a_job_become_files_for_everyone_to_read(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "{}", "restartType": "hotReset", "checkCode": "1"})
    await node.write("data-trace-llama", {"profilingSwitch": "on"})
    await node.run_pod("a")
    mask = os.umask(0o077)
    try:
        async with node.mirroring():
            trace = node.trace / "default.data-trace-llama" / "profilingSwitch"
            await until(lambda: node.read(RESET_FILE) == "{}" and trace.exists())
    finally:
        os.umask(mask)
    assert node.read(TYPE_FILE) == "hotReset"
    assert trace.read_text() == "on"
    folder = (node.reset / RESET_FILE).parent
    assert sorted(path.name for path in folder.iterdir()) == ["reset.json", "restartType"]
    assert folder.stat().st_mode & 0o777 == 0o755
    assert (node.reset / RESET_FILE).stat().st_mode & 0o777 == 0o644


@pytest.mark.parametrize("label", [JOB, "training.kubeflow.org/job-name", "deploy-name"])
async def test_the_folders_are_there_before_the_config_maps(node: Node, label: str) -> None:
    async with node.mirroring():
        await node.run_pod("a", label=label)
        await until((node.reset / RESET_FILE).parent.is_dir)
        await until((node.trace / "default.data-trace-llama").is_dir)
        await node.write("reset-config-llama", {"reset.json": "{}"})
        await until(lambda: node.read(RESET_FILE) == "{}")


async def test_a_change_replaces_the_file_and_a_key_that_is_gone_removes_it(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "1", "restartType": "hotReset"})
    await node.run_pod("a")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) == "1")
        with (node.reset / RESET_FILE).open() as reader:
            await node.change("reset-config-llama", {"reset.json": "22", "restartType": None})
            await until(lambda: node.read(RESET_FILE) == "22")
            assert reader.read() == "1"  # a reader that has the file open does not see a mixture
        assert node.read(TYPE_FILE) is None
        await node.client.delete(CONFIG_MAPS, "reset-config-llama", "default")
        await until(lambda: node.read(RESET_FILE) is None)
        assert (node.reset / RESET_FILE).parent.is_dir()


async def test_the_files_stay_until_the_last_pod_of_the_job_is_gone(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "1"})
    await node.run_pod("a")
    await node.run_pod("b")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) == "1")
        await node.client.delete(PODS, "a", "default")
        await node.change("reset-config-llama", {"reset.json": "2"})
        await until(lambda: node.read(RESET_FILE) == "2")
        await node.client.delete(PODS, "b", "default")
        await until(lambda: not any(node.reset.iterdir()) and not any(node.trace.iterdir()))
        await node.run_pod("c")
        await until(lambda: node.read(RESET_FILE) == "2")


async def test_the_files_of_a_pod_that_has_ended_are_removed(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "1"})
    await node.run_pod("a")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) == "1")
        await node.client.patch(
            PODS, "a", {"status": {"phase": "Succeeded"}}, namespace="default", subresource="status"
        )
        await until(lambda: not any(node.reset.iterdir()))


async def test_a_file_whose_config_map_was_deleted_during_a_restart_is_removed(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "1"})
    await node.run_pod("a")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) == "1")
    await node.client.delete(CONFIG_MAPS, "reset-config-llama", "default")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) is None)
        assert (node.reset / RESET_FILE).parent.is_dir()


async def test_files_of_others_keep_their_folder(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "1"})
    await node.run_pod("a")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) == "1")
        (node.reset / "default.reset-config-llama" / "mine").touch()
        await node.client.delete(PODS, "a", "default")
        await until(lambda: node.read(RESET_FILE) is None)
    assert [path.name for path in node.reset.rglob("*")] == ["default.reset-config-llama", "mine"]


async def test_only_jobs_with_chips_on_the_node_and_labelled_config_maps_are_mirrored(node: Node) -> None:
    await node.write("reset-config-cpu", {"reset.json": "1"})
    await node.write("reset-config-plain", {"reset.json": "1"}, reset="false")
    await node.write("reset-config-llama", {"reset.json": "1"})
    await node.run_pod("a", "cpu", chips=0)
    await node.run_pod("b", "plain")
    await node.run_pod("c")
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) == "1" and (node.reset / "default.reset-config-plain").is_dir())
        await node.change("reset-config-plain", {"reset.json": "2"})
        await node.change("reset-config-llama", {"reset.json": "2"})
        await until(lambda: node.read(RESET_FILE) == "2")
        await node.change("reset-config-llama", {"reset.json": "3"})
        await until(lambda: node.read(RESET_FILE) == "3")
        assert node.read("default.reset-config-plain/reset.json") is None
    assert sorted(path.name for path in node.reset.iterdir()) == [
        "default.reset-config-llama",
        "default.reset-config-plain",
    ]


async def test_a_restart_keeps_the_files_of_running_jobs_and_removes_those_of_ended_ones(node: Node) -> None:
    for job in ("llama", "ended"):
        await node.write(f"reset-config-{job}", {"reset.json": "1"})
        await node.run_pod(job, job)
    async with node.mirroring():
        await until(lambda: node.read(RESET_FILE) and node.read("default.reset-config-ended/reset.json"))
    (node.reset / "default.reset-config-prepared").mkdir()  # an operator's, for a job that will come
    (node.reset / "notes").mkdir()
    (node.reset / "notes" / "reset.json").touch()
    before = (node.reset / RESET_FILE).stat()
    await node.client.delete(PODS, "ended", "default")
    async with node.mirroring():
        await until(lambda: not (node.reset / "default.reset-config-ended").exists())
        await node.change("reset-config-llama", {"restartType": "hotReset"})
        await until(lambda: node.read(TYPE_FILE) == "hotReset")
    assert (node.reset / RESET_FILE).stat() == before
    assert sorted(path.name for path in node.reset.iterdir()) == [
        "default.reset-config-llama",
        "default.reset-config-prepared",
        "notes",
    ]


async def test_an_obstacle_is_retried_and_does_not_stop_other_jobs(node: Node) -> None:
    await node.write("reset-config-llama", {"reset.json": "1"})
    await node.write("reset-config-other", {"reset.json": "1"})
    obstacle = node.reset / RESET_FILE
    obstacle.mkdir(parents=True)
    await node.run_pod("a")
    await node.run_pod("b", "other")
    async with node.mirroring():
        await until(lambda: node.read("default.reset-config-other/reset.json") == "1")
        obstacle.rmdir()
        await until(lambda: node.read(RESET_FILE) == "1")


async def test_a_lasting_obstacle_is_logged_once(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(mirror, "Backoff", lambda: Backoff(first_s=0.001, limit_s=0.001))
    tried: list[MirroredFolder] = []
    write = MirroredFolder.write

    def counted(folder: MirroredFolder, data: Mapping[str, str]) -> bool:
        tried.append(folder)
        return write(folder, data)

    monkeypatch.setattr(MirroredFolder, "write", counted)
    await node.write("reset-config-llama", {"reset.json": "1"})
    (node.reset / RESET_FILE).mkdir(parents=True)
    await node.run_pod("a")
    async with node.mirroring():
        await until(lambda: len(tried) > 10)
    assert capsys.readouterr().out.count("can't mirror a ConfigMap") == 1


def test_links_planted_by_a_container_are_replaced_and_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("1")
    folder = MirroredFolder(tmp_path / "root", "default.reset-config-llama", ("reset.json",))
    folder.make()
    path = tmp_path / "root" / folder.name
    for name in ("reset.json", ".reset.json.tmp"):
        (path / name).symlink_to(victim)
    assert folder.write({"reset.json": "1"})
    assert not (path / "reset.json").is_symlink()
    assert (path / "reset.json").read_text() == victim.read_text() == "1"
    folder.remove()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "reset.json").write_text("theirs")
    path.symlink_to(elsewhere)
    with pytest.raises(OSError, match="directory"):
        folder.write({"reset.json": "2"})
    with pytest.raises(OSError, match="directory"):
        folder.remove()
    assert (elsewhere / "reset.json").read_text() == "theirs"
    assert victim.read_text() == "1"


def test_a_named_pipe_or_a_huge_file_does_not_stop_the_mirror(tmp_path: Path) -> None:
    folder = MirroredFolder(tmp_path, "default.reset-config-llama", ("reset.json", "restartType"))
    folder.make()
    os.mkfifo(tmp_path / folder.name / "reset.json")
    with (tmp_path / folder.name / "restartType").open("wb") as file:
        file.truncate(1 << 40)
    assert folder.write({"reset.json": "", "restartType": "hotReset"})
    assert (tmp_path / folder.name / "reset.json").read_text() == ""
    assert (tmp_path / folder.name / "restartType").read_text() == "hotReset"
    assert not folder.write({"reset.json": "", "restartType": "hotReset"})


@pytest.mark.parametrize("job_files", [False, True])
async def test_the_plugin_mirrors_only_if_it_is_configured_to(
    folder: Path,
    job_files: bool,  # noqa: FBT001 - pytest passes parameters by name
) -> None:
    root = folder / "reset"
    async with whole_node(folder) as whole:
        dirs = {"reset_config_dir": root, "data_trace_dir": folder / "trace"}
        async with whole.plugin(job_files=job_files, **dirs):
            await whole.client.create(CONFIG_MAPS, config_map("reset-config-llama", {"reset.json": "{}"}), "default")
            body = pod_manifest("a", 1)
            body["metadata"]["labels"] = {JOB: "llama"}
            pod = await whole.client.create(PODS, body, "default")
            await whole.client.bind(
                namespace="default", name="a", uid=pod.uid, node=NODE, annotations=Grant((3,), 1).annotations()
            )
            await whole.claimed("a")
            if job_files:
                await until((root / RESET_FILE).exists)
    assert root.exists() == job_files


async def test_a_file_for_which_there_is_no_space_is_named_and_written_later(
    client: RecordingClient, small_disk: SmallDisk
) -> None:
    node = Node(client, small_disk.path)
    folder = small_disk.path / "restore" / "reset" / "default.reset-config-llama"
    folder.mkdir(parents=True)
    small_disk.fill()
    await node.write("reset-config-llama", {"reset.json": "{}"})
    await node.run_pod("a")
    with structlog.testing.capture_logs() as logs:
        async with node.mirroring():
            await until(lambda: any("can't mirror" in each["event"] for each in logs))
    (said,) = (each for each in logs if "can't mirror" in each["event"])
    assert said["folder"] == str(folder)
    assert said["error"] == "[Errno 28] No space left on device: 'reset.json'"
    assert list(folder.iterdir()) == []
    async with node.mirroring():
        small_disk.empty()
        await until(lambda: node.read(RESET_FILE) == "{}")


async def test_a_file_that_a_killed_plugin_has_begun_does_not_keep_the_folder(node: Node) -> None:
    folder = (node.reset / RESET_FILE).parent
    folder.mkdir(parents=True)
    (folder / ".reset.json.tmp").touch()
    async with node.mirroring():
        await until(lambda: not folder.exists())

"""``npuctl doctor``: each test makes a problem on a node of the sandbox with a device plugin."""

import asyncio
import json
import os
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry
from rich.console import Console

from ascend.chips import RESOURCE
from ascend.deviceinfo import DEVICE_INFO, NAMESPACE, config_map_name, decode_report, encode_report
from ascend.kube.objects import CONFIG_MAPS, NODES
from ascend.observe.probes import add_probes
from ascend.serving.http import serve_http
from ascend.templates import RESOURCE_CORES
from device_plugin.driver.simulated_file import SimulatedServer
from device_plugin.serving.instance_lock import InstanceLock
from device_plugin.settings import Settings
from npuctl.doctor import processes
from npuctl.doctor.chips import check_device_nodes, check_injection, check_library
from npuctl.doctor.command import Diagnosis, render
from npuctl.doctor.finding import Check, Finding, ok, run_check
from npuctl.doctor.kubelet import check_readiness
from npuctl.doctor.node import check_node
from sandbox.cluster import save_server
from tests.device_plugin.api import NODE, seen, until
from tests.device_plugin.conftest import folder
from tests.device_plugin.test_dynamic_vnpus import bind as bind_cores
from tests.device_plugin.test_dynamic_vnpus import cores_node, plugin_on
from tests.device_plugin.test_vnpus import FOUR, TWO, bind, cut, offers
from tests.device_plugin.whole import Whole, as_given, whole_node

__all__ = ["folder"]


@pytest.fixture
async def whole(folder: Path) -> AsyncIterator[Whole]:
    """A node with a running plugin."""
    async with whole_node(folder) as node, node.plugin() as plugin:
        await until(lambda: plugin.snapshots.value is not None)
        await report_there(node)
        yield node


async def report_there(whole: Whole) -> None:
    async with asyncio.timeout(20.0):
        while not [each for each in await whole.client.list_objects(CONFIG_MAPS, NAMESPACE) if each.data]:  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


async def doctor(settings: Settings, environment: dict[str, str] | None = None) -> list[Finding]:
    return await check_node(settings, environment=environment or {})


def bad(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    return [(each.check, each.severity) for each in findings if each.severity != "ok"]


def said(findings: Sequence[Finding], check: str) -> str:
    return " | ".join(f"{each.sentence} -> {each.advice}" for each in findings if each.check == check)


SIMULATED = ("driver library", "warning")
FILES = ("device nodes", "warning")
"""The sandbox's device nodes are plain files."""


async def test_a_healthy_node_has_no_problems(whole: Whole) -> None:
    begun: list[str] = []
    found = await check_node(whole.settings(), environment={}, begin=lambda check: begun.append(check.name))
    assert bad(found) == [SIMULATED, FILES]
    assert begun == list(dict.fromkeys(each.check for each in found))
    assert "8 chips" in said(found, "chips")
    assert "serves huawei.com/Ascend910 ->" in said(found, "device plugin")
    assert f"by process {os.getpid()}" in said(found, "device plugin")
    assert "kubelet and report agree: 8 of 8 chips healthy" in said(found, "report")


async def test_a_faulty_chip_is_a_warning_with_its_fault_codes(whole: Whole) -> None:
    whole.node.edit_chip(3, fault_codes=["80E18402"])
    await until(lambda: whole.node.kubelet.devices(RESOURCE)["Ascend910-3"] == "Unhealthy")
    found = await doctor(whole.settings())
    assert ("chips", "warning") in bad(found)
    assert "Ascend910-3: 80E18402" in said(found, "chips")


async def test_a_card_that_was_not_ready_is_named_with_its_chip(whole: Whole) -> None:
    whole.node.edit_chip(3, ready=False)
    findings = await doctor(whole.settings())
    assert ("chips", "warning") in bad(findings)
    assert "1 of 8 cards was not ready when the driver was initialized" in said(findings, "chips")
    assert "Ascend910-3: the driver does not list its card" in said(findings, "chips")


async def test_a_driver_that_fails_is_a_problem(whole: Whole) -> None:
    server = msgspec.json.decode(whole.node.state_file.read_bytes(), type=SimulatedServer)
    server.error = "dcmi_init: -8005"
    save_server(server, whole.node.state_file)
    found = await doctor(whole.settings())
    assert ("chips", "problem") in bad(found)
    assert "dcmi_init: -8005" in said(found, "chips")


async def test_a_stopped_kubelet_is_a_problem_of_each_of_its_sockets(whole: Whole) -> None:
    await whole.node.kubelet.stop()
    found = await doctor(whole.settings())
    assert {("kubelet.sock", "problem"), ("pod-resources", "problem"), ("kubelet's pods", "warning")} <= set(bad(found))
    assert "systemctl status kubelet" in said(found, "kubelet.sock")


async def test_a_kubelet_with_an_ipv6_address_is_called_at_it(whole: Whole) -> None:
    found = await doctor(whole.settings(host_ip="::1", kubelet_pods_url=None))
    assert "https://[::1]:10250/pods" in said(found, "kubelet's pods")


async def test_a_missing_folder_of_the_kubelet_is_named(whole: Whole) -> None:
    found = await doctor(whole.settings(device_plugin_dir=Path("/nowhere/device-plugins")))
    assert ("kubelet's folder", "problem") in bad(found)
    assert "/nowhere/device-plugins does not exist" in said(found, "kubelet's folder")
    assert "no ascend-device-plugin serves here" in said(found, "device plugin")
    # The component of a pool's pods is device-plugin-<pool>, and nameOverride changes their name.
    assert "-l app.kubernetes.io/part-of=ascend-affinity " in said(found, "device plugin")


async def test_sockets_without_a_server_and_files_that_are_no_socket_are_named(whole: Whole, folder: Path) -> None:
    directory = folder / "dead"
    directory.mkdir()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(directory / "ascend910-1-1.sock"))
    (directory / "kubelet.sock").touch()
    found = await doctor(whole.settings(device_plugin_dir=directory))
    assert "ascend910-1-1.sock" in said(found, "device plugin")
    assert "is not a socket" in said(found, "kubelet.sock")
    (directory / "kubelet.sock").unlink()
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(directory / "kubelet.sock"))
    assert "Connection refused" in said(await doctor(whole.settings(device_plugin_dir=directory)), "kubelet.sock")


async def test_a_plugin_without_the_lock_and_two_plugins_are_problems(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InstanceLock, "renew", lambda _lock: None)  # a plugin that lost its lock, and works on
    directory = whole.node.kubelet.socket_dir
    (directory / "ascend910.lock").unlink()
    (directory / "ascend910.lock").touch()
    found = await doctor(whole.settings())
    assert "ascend910.lock is not held, although a plugin serves" in said(found, "device plugin")
    (own,) = directory.glob("ascend910-*.sock")
    (directory / "ascend910-9-9.sock").symlink_to(own)
    assert "several plugins serve" in said(await doctor(whole.settings()), "device plugin")


async def test_a_plugin_that_serves_vnpus_beside_chips_is_one_plugin(folder: Path) -> None:
    async with whole_node(folder) as node:
        cut(node, 1, v100="vir02", v101="vir04")
        async with node.plugin(0b1111_1101):
            await until(lambda: offers(node, TWO, v100_1="Healthy") and offers(node, FOUR, v101_1="Healthy"))
            await bind(node, "part", TWO, "Ascend910-2c-100-1")
            await node.bind("whole", 0, 2)
            await node.claimed("part")
            await node.claimed("whole")
            found = await doctor(node.settings())
            assert ("device plugin", "problem") not in bad(found)
            served = "serves huawei.com/Ascend910, huawei.com/Ascend910-2c, huawei.com/Ascend910-4c ->"
            assert served in said(found, "device plugin")
            assert "answers; 2 pods with chips, vNPUs or AI cores" in said(found, "pod-resources")


async def test_a_plugin_that_serves_ai_cores_says_so(folder: Path) -> None:
    async with cores_node(folder) as node, plugin_on(node):
        await bind_cores(node, "part", 5, "1-vir05_1c_16g")
        await node.claimed("part")
        found = await doctor(node.settings(dynamic_vnpus=True))
        assert "serves huawei.com/npu-core ->" in said(found, "device plugin")
        assert "answers; 1 pod with chips, vNPUs or AI cores" in said(found, "pod-resources")
        status = {"status": {"allocatable": {RESOURCE_CORES: "0"}}}
        await node.client.patch(NODES, NODE, status, subresource="status")
        found = await doctor(node.settings(dynamic_vnpus=True))
        assert "the kubelet offers 0 AI cores, the report has 8 healthy of 8 chips" in said(found, "report")


async def test_mindclusters_plugin_on_the_same_node_is_a_problem(whole: Whole) -> None:
    path = whole.node.kubelet.socket_dir / "Ascend910.sock"
    server = await asyncio.start_unix_server(lambda _reader, writer: writer.close(), path)
    async with server:
        found = await doctor(whole.settings())
        assert ("device plugin", "problem") in bad(found)
        assert "MindCluster's device plugin serves too, on Ascend910.sock" in said(found, "device plugin")


async def test_what_the_plugin_itself_waits_for_is_reported(folder: Path) -> None:
    async with whole_node(folder) as node, node.plugin() as plugin:
        await report_there(node)
        settings = node.settings(http_address=plugin.http_address)

        async def tells(words: str) -> None:
            async with asyncio.timeout(20.0):
                while words not in said(await doctor(settings), "device plugin"):  # noqa: ASYNC110 - there is no event to wait for
                    await asyncio.sleep(0.05)

        await tells("it is ready")
        node.cluster.server.fail_next("PATCH", "configmaps", 500, times=1000)
        node.node.edit_chip(3, fault_codes=["80E18402"])
        await tells("it is not ready: report:")


async def test_missing_rights_are_named_with_their_purpose(whole: Whole) -> None:
    whole.cluster.server.denied |= {("patch", "nodes"), ("get", "nodes/pods"), ("watch", "configmaps")}
    found = await doctor(whole.settings())
    assert "not granted: patch nodes (annotations and labels" in said(found, "rights")
    assert "watch configmaps in kube-system" in said(found, "rights")
    assert "nodes/pods" not in said(found, "rights")  # nodes/proxy is enough
    whole.cluster.server.denied.add(("get", "nodes/proxy"))
    assert "get nodes/pods or get nodes/proxy" in said(await doctor(whole.settings()), "rights")


async def test_an_unreachable_api_server_is_one_problem(whole: Whole) -> None:
    path = whole.cluster.write_kubeconfig("away", server="http://127.0.0.1:1")
    found = await doctor(whole.settings(kubeconfig=str(path)))
    assert "127.0.0.1:1" in said(found, "API server")
    assert said(found, "rights").startswith("skipped")
    nobody = await doctor(whole.settings(kubeconfig="/nowhere/kubeconfig"))
    assert "no usable access" in said(nobody, "API server")


async def test_an_unknown_node_name_says_how_to_correct_it(whole: Whole) -> None:
    found = await doctor(whole.settings(node_name="other"))
    assert "has no Node 'other'" in said(found, "API server")
    assert "there is no ConfigMap kube-system/mindx-dl-deviceinfo-other" in said(found, "report")


async def test_reports_that_are_forged_old_ahead_or_final_are_problems(folder: Path) -> None:
    async with whole_node(folder) as whole:
        async with whole.plugin():
            await report_there(whole)
        name = config_map_name(NODE)

        async def told() -> str:
            return said(await doctor(whole.settings()), "report")

        assert "says that the plugin has ended" in await told()
        data = (await whole.client.get(CONFIG_MAPS, name, NAMESPACE)).data
        for time_s, sentence in (
            (1_000_000, "but is written every 300 s"),
            (9_999_999_999, "s ahead of this clock"),
        ):
            dated = encode_report(replace(decode_report(data), update_time_s=time_s))
            await whole.client.patch(CONFIG_MAPS, name, {"data": dated}, namespace=NAMESPACE)
            assert sentence in await told()
        forged = {DEVICE_INFO: data[DEVICE_INFO].replace("Ascend910-7", "Ascend910-6")}
        await whole.client.patch(CONFIG_MAPS, name, {"data": forged}, namespace=NAMESPACE)
        assert "CheckCode" in await told()


async def test_a_faulty_chip_in_use_is_offered_and_no_problem(whole: Whole) -> None:
    await whole.bind("train", 0, 1)
    await whole.claimed("train")
    whole.node.edit_chip(1, fault_codes=["80E18402"])
    await seen(whole.report, lambda found: found.unhealthy == 0b10)
    assert "kubelet and report agree: 7 of 8 chips healthy" in said(await doctor(whole.settings()), "report")


async def test_a_faulty_chip_that_may_be_in_use_is_no_problem_if_the_pods_are_unknown(whole: Whole) -> None:
    await whole.bind("train", 0, 1)
    await whole.claimed("train")
    whole.node.edit_chip(1, fault_codes=["80E18402"])
    await seen(whole.report, lambda found: found.unhealthy == 0b10)
    found = await doctor(whole.settings(kubelet_pods_url="http://127.0.0.1:1/pods"))
    assert "can only be told apart" in said(found, "kubelet's pods")
    assert "kubelet and report agree: 7 of 8 chips healthy" in said(found, "report")


async def test_a_kubelet_that_is_not_verified_is_a_warning_that_says_how(whole: Whole, tmp_path: Path) -> None:
    unknown = whole.settings(kubelet_pods_url="https://127.0.0.1:1/pods", kubelet_cert_dir=tmp_path)
    text = said(await doctor(unknown), "kubelet's pods")
    assert "no token is sent to https://127.0.0.1:1/pods, which is not proved to be the kubelet" in text
    assert f"there is no certificate of the kubelet in {tmp_path}" in text
    assert "devicePlugin.kubelet" in text
    anybody = whole.settings(kubelet_insecure_skip_tls_verify=True)
    assert "nothing proves that it is the kubelet" in said(await doctor(anybody), "kubelet's pods")


async def test_a_kubelet_that_offers_other_chips_than_reported_is_a_warning(whole: Whole) -> None:
    status = {"status": {"allocatable": {RESOURCE: "5"}}}
    await whole.client.patch(NODES, NODE, status, subresource="status")
    assert "offers 5 chips, the report has 8 healthy of 8 chips" in said(await doctor(whole.settings()), "report")


def settings(**changes: Any) -> Settings:
    return Settings(node_name="n1", **changes)


def test_the_library_is_found_where_the_driver_finds_it(tmp_path: Path) -> None:
    (missing,) = check_library(settings(), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (missing.severity, "/usr/local/Ascend/driver" in missing.advice) == ("problem", True)
    library = tmp_path / "libdcmi.so"
    library.touch()
    library.chmod(0o666)
    (open_to_all,) = check_library(settings(), {"LD_LIBRARY_PATH": str(tmp_path)})
    assert (open_to_all.severity, str(library) in open_to_all.sentence) == ("problem", True)
    library.chmod(0o644)
    (found,) = check_library(settings(dcmi_library=library), {})
    assert (found.severity, found.sentence) == ("ok", f"found at {library}")


async def test_a_file_that_is_no_library_is_a_problem(tmp_path: Path) -> None:
    library = tmp_path / "libdcmi.so"
    library.write_text("no library")
    (tmp_path / "nobody.kubeconfig").touch()
    found = await doctor(settings(dcmi_library=library, kubeconfig=str(tmp_path / "nobody.kubeconfig")))
    assert "can't be loaded" in said(found, "chips")


def test_device_nodes_that_are_missing_or_closed_are_named(tmp_path: Path) -> None:
    (tmp_path / "davinci_manager").touch()
    (missing,) = check_device_nodes(settings(device_root=tmp_path), [0, 1], {})
    assert (missing.severity, "davinci0, davinci1" in missing.sentence) == ("problem", True)
    assert (
        check_device_nodes(settings(device_root=Path("/dev"), driver="simulated", injection="runtime"), [0], {})[
            0
        ].severity
        == "ok"
    )


@pytest.mark.parametrize(
    ("injection", "mark", "severity"),
    [
        ("auto", "True", "ok"),
        ("auto", "", "ok"),
        ("runtime", "", "warning"),
        ("runtime", "True", "ok"),
        ("both", "", "ok"),
        ("devices", "True", "warning"),
        ("cdi", "True", "warning"),
        ("cdi", "", "warning"),
    ],
)
def test_how_containers_get_their_chips_is_checked(injection: str, mark: str, severity: str, tmp_path: Path) -> None:
    environment = {"ASCEND_DOCKER_RUNTIME": mark} if mark else {}
    (found,) = check_injection(settings(injection=injection, cdi_dir=tmp_path), environment)
    assert found.severity == severity, found


async def test_a_check_that_hangs_or_fails_is_a_finding_itself() -> None:
    async def hang() -> Sequence[Finding]:
        await asyncio.Event().wait()
        return []

    async def break_down() -> Sequence[Finding]:
        raise RuntimeError("what")

    (late,) = await run_check(Check("a", "", hang, deadline_s=0.01))
    assert (late.severity, late.sentence) == ("problem", "no answer within 0.01 s")
    (broken,) = await run_check(Check("b", "", break_down))
    assert (broken.severity, "RuntimeError: what" in broken.sentence) == ("problem", True)


def test_advice_is_printed_below_each_finding() -> None:
    console = Console(width=80, color_system=None)
    with console.capture() as captured:
        findings = [Finding("chips", "ok", "8 chips"), Finding("chips", "problem", "none", "buy some")]
        console.print(render(Diagnosis("n1", problems=1, warnings=0, findings=findings)))
    lines = [line.rstrip() for line in captured.get().splitlines()]
    assert lines == ["✓ chips 8 chips", "✗       none", "        → buy some", "n1: 1 problem, 0 warnings"]


async def command(*arguments: str, **environment: str) -> tuple[int, str, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "npuctl.cli", "doctor", *arguments),
        env=os.environ | environment,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return process.returncode or 0, out.decode(), err.decode()


async def test_the_command_reads_the_plugins_settings_and_prints_json(whole: Whole) -> None:
    flags = as_given(whole.settings())
    config = whole.node.state_file.with_name("settings.yaml")
    config.write_text(json.dumps(flags))
    status, out, err = await command("-o", "json", ASCEND_DP_CONFIG=str(config))
    found = json.loads(out)
    assert (status, found["node"], found["problems"]) == (0, NODE, 0), out
    keys = {"check", "severity", "sentence", "advice", "reason", "nodes", "pods", "codes"}
    assert set(found["findings"][0]) == keys
    assert "Traceback" not in err
    status, out, _ = await command("--config", str(config), "--device-plugin-dir", "/nowhere")
    assert status == 1
    assert "/nowhere does not exist" in out


async def test_a_wrong_flag_is_refused() -> None:
    status, out, err = await command("--driver", "magic")
    assert (status, out) == (2, "")
    assert "'magic'" in err
    assert (await command("--colour=red"))[0] == 2


@pytest.mark.parametrize("address", ["127.0.0.2:0", ":{port}", "[::]:{port}"])
async def test_the_plugins_page_is_told_from_that_of_another_program(address: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    page, another = web.Application(), web.Application()
    add_probes(page, registry=CollectorRegistry(), ready={"driver": lambda: "it hangs"})
    async with serve_http(page, address.format(port=port)) as bound:
        asked = bound if bound.startswith("127.") else address.format(port=port)
        assert [each.sentence for each in await check_readiness(asked)] == ["it is not ready: driver: it hangs"]
    async with serve_http(another, "127.0.0.1:0") as bound:
        (found,) = await check_readiness(bound)
    assert (found.severity, found.sentence.split(":")[0]) == ("warning", "the page at 127.0.0.1")


async def test_a_chip_that_needs_a_reset_is_named_with_what_prevents_it(whole: Whole) -> None:
    assert "none of 8 chips needs a reset" in said(await doctor(whole.settings()), "resets")
    whole.node.edit_chip(3, fault_codes=["80A18008"])
    await until(lambda: whole.node.kubelet.devices(RESOURCE)["Ascend910-3"] == "Unhealthy")
    found = said(await doctor(whole.settings()), "resets")
    assert "Ascend910-3 (80A18008 (RestartNPU)) needs a reset of Ascend910-0,Ascend910-1,Ascend910-2" in found
    assert "nobody uses them -> set `hot_reset: on`" in found
    assert "within its limit" in said(await doctor(whole.settings(hot_reset="on")), "resets")
    await whole.bind("holder", 1)
    await whole.claimed("holder")
    assert "pod default/holder holds Ascend910-1" in said(await doctor(whole.settings(hot_reset="on")), "resets")
    whole.node.edit_chip(5, fault_codes=["80E18402"])
    await until(lambda: whole.node.kubelet.devices(RESOURCE)["Ascend910-5"] == "Unhealthy")
    assert "Ascend910-5 has a fault that the device plugin does not reset" in said(
        await doctor(whole.settings()), "resets"
    )


async def test_processes_on_chips_that_nobody_was_given_are_named(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "AGAIN_S", 0.01)
    await whole.bind("holder", 1)
    await whole.claimed("holder")
    whole.node.edit_chip(1, processes=[4710])
    assert "among 8 chips" in said(await doctor(whole.settings()), "processes")
    whole.node.edit_chip(5, processes=[4711, 4712])
    found = said(await doctor(whole.settings()), "processes")
    assert found.startswith("Ascend910-5: processes 4711, 4712 use it, and no pod that holds it is theirs")


async def test_a_process_that_ends_between_two_looks_is_no_finding(
    whole: Whole, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = processes._foreign  # the other process comes between the two looks, however slow they are

    async def look_and_change(*of: Any) -> dict[int, frozenset[int]]:
        found = await look(*of)
        whole.node.edit_chip(5, processes=[4712])
        return found

    whole.node.edit_chip(5, processes=[4711])
    monkeypatch.setattr(processes, "AGAIN_S", 0.0)
    monkeypatch.setattr(processes, "_foreign", look_and_change)
    assert await processes.check_processes(whole.settings(), list) == [
        ok("none uses a chip of another pod, or of nobody, among 8 chips")
    ]


async def test_a_missing_driver_is_said_once(tmp_path: Path) -> None:
    nobody = str(tmp_path / "nobody.kubeconfig")
    found = await doctor(settings(dcmi_library=tmp_path / "libdcmi.so", kubeconfig=nobody))
    assert [each.check for each in found if "libdcmi.so" in each.sentence] == ["driver library"]
    assert {("chips", "warning"), ("device nodes", "warning")} <= set(bad(found))
    assert said(found, "chips").startswith("skipped: ")
    assert said(found, "device nodes").startswith("skipped: ")

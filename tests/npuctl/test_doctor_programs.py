"""``npuctl doctor --cluster`` recognizes whose device plugin and whose scheduler run."""

import json
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from ascend.annotations import FENCE
from ascend.errors import InvalidValue
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, PODS
from ascend.serving.http import serve_http
from npuctl.doctor.details import Details, find_details, read_details
from npuctl.doctor.finding import Finding
from npuctl.doctor.programs import check_programs
from npuctl.reading.manifests import ManifestReading, read_manifests
from sandbox.apiserver import ApiServer
from tests.e2e.programs import write_kubeconfig
from tests.npuctl.manifests import Json, as_list, node, pod

OURS = "ascend-affinity"
THEIRS = "tiers:\n- plugins:\n  - name: gang\n  - name: volcano-npu_v26.0.0_linux-aarch64\n"
USER = "system:serviceaccount:kube-system:ascend-device-plugin-sa"
FLAGS = "device-plugin -volcanoType=true -presetVirtualDevice=true"


def program(name: str, on: str, labels: dict[str, str]) -> Json:
    return pod(name, None, node=on, namespace="kube-system", labels=labels)


def our(component: str, on: str) -> Json:
    labels = {"app.kubernetes.io/part-of": OURS, "app.kubernetes.io/component": component}
    return program(f"{component}-{on}", on, labels)


def their_plugin(on: str) -> Json:
    return program(f"ascend-device-plugin-{on}", on, {"name": "ascend-device-plugin-ds"})


def volcano(on: str = "n1") -> Json:
    return program("volcano-scheduler", on, {"app": "volcano-scheduler"})


def placed(name: str, on: str, *, by_volcano: bool) -> Json:
    made = pod(name, 1, node=on, chips=[0], annotations={} if by_volcano else {FENCE: "allocator-1"})
    made["spec"]["schedulerName"] = "volcano" if by_volcano else "default-scheduler"
    return made


def read(folder: Path, *manifests: Json) -> ManifestReading:
    path = folder / "objects.json"
    path.write_text(json.dumps(as_list(*manifests)))
    return read_manifests([str(path)], strict=True)


def check(folder: Path, *manifests: Json, details: Details | None = None) -> list[Finding]:
    reading = read(folder, *manifests)
    nodes = [each.name for each in reading.objects.nodes]
    return list(check_programs(reading.objects, nodes, details or find_details(reading.manifests)))


def say(found: list[Finding]) -> list[tuple[str, str]]:
    return [(each.severity, each.sentence) for each in found]


def test_nothing_is_claimed_where_no_program_is_seen(tmp_path: Path) -> None:
    found = say(check(tmp_path, node("n1")))
    assert found == [("ok", "whose they are is not known: none of their pods is among the objects")]


def test_both_halves_are_this_projects(tmp_path: Path) -> None:
    found = say(check(tmp_path, node("n1"), our("device-plugin", "n1"), our("allocator", "n1")))
    assert found == [
        ("ok", "this project's device plugin on node n1"),
        ("ok", "chips are chosen by this project's allocator"),
    ]


def test_the_allocator_over_mindclusters_plugin(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2"), our("allocator", "n1"), their_plugin("n1"), our("device-plugin", "n2")]
    found = check(tmp_path, *nodes, details=Details(plugins={"n1": FLAGS}))
    assert say(found) == [
        ("ok", "this project's device plugin on node n2, MindCluster's device plugin on node n1"),
        ("ok", "chips are chosen by this project's allocator"),
        ("ok", "this allocator over MindCluster's device plugin, on node n1"),
    ]
    assert "vNPUs and pods with chips in several containers need this project's" in found[-1].advice


@pytest.mark.parametrize(
    ("flags", "follows"),
    [
        (FLAGS, True),
        ("device-plugin --volcanoType", True),
        ("device-plugin -volcanoType=T -x", True),
        ("device-plugin -volcanoType=false", False),
        ("device-plugin -volcanoType=true -volcanoType=0", False),
        ("device-plugin -novolcanoType=true", False),
        ("/bin/bash -c 'device-plugin -volcanoType=true; true'", True),
        ('device-plugin "-volcanoType=true"', True),
        ("(device-plugin -volcanoType=true)&&sleep 1", True),
        ("device-plugin # -volcanoType=true", False),
        ("device-plugin -volcanoType=$(V)", True),  # not known
        ("device-plugin $(FLAGS)", True),  # not known
        ("device-plugin", False),
        ("device-plugin -logFile=/var/log/a#b.log -volcanoType=true", True),
        ("device-plugin -logLevel=$(LEVEL) -volcanoType=false", False),
        ("device-plugin -logLevel=$LEVEL", False),
        ("device-plugin -volcanoType true -volcanoType=false", True),
        ("device-plugin -- -volcanoType=true", False),
        ("/bin/bash -c -- export P=/usr:$P; umask 027; /usr/local/bin/device-plugin -volcanoType=false", False),
        ("/bin/bash -c -- cd /x && device-plugin -useAscendDocker=false; echo -volcanoType", False),
        ("/bin/bash -c -- echo it's up; device-plugin -volcanoType=true", True),
        ("sh -c 'device-plugin -volcanoType=true'", True),
        ('device-plugin -volcanoType="true"', True),
        ("device-plugin \\\n  -volcanoType=false", False),
        ('device-plugin -logFile="/a b.log" -volcanoType=true', True),
        ("/bin/bash -c -- mkdir -p /etc/device-plugin && device-plugin -volcanoType=true", True),
        ("/bin/bash -c -- device-plugin -a\nsleep 1", False),
        ("", True),  # not known
        ("/entrypoint.sh", True),  # not known
    ],
)
def test_a_plugin_that_ignores_the_allocator_is_a_problem(flags: str, follows: bool, tmp_path: Path) -> None:  # noqa: FBT001
    details = Details(plugins={"n1": flags})
    found = say(check(tmp_path, node("n1"), our("allocator", "n1"), their_plugin("n1"), details=details))
    ignores = ("problem", "MindCluster's device plugin ignores the chips that the allocator writes, on node n1")
    assert (ignores not in found) is follows


def test_mindclusters_scheduler_over_this_plugin(tmp_path: Path) -> None:
    nodes = [node("n1"), our("device-plugin", "n1"), volcano()]
    found = say(check(tmp_path, *nodes, details=Details(chooses_by_volcano=True)))
    assert found == [
        ("ok", "this project's device plugin on node n1"),
        ("ok", "chips are chosen by MindCluster's plugin of Volcano"),
        ("ok", "MindCluster's scheduler over this device plugin, on node n1"),
    ]


def test_volcano_without_mindclusters_plugin_chooses_nothing(tmp_path: Path) -> None:
    nodes = [node("n1"), our("device-plugin", "n1"), volcano()]
    assert ("warning", "no known program chooses chips") in say(
        check(tmp_path, *nodes, details=Details(chooses_by_volcano=False))
    )
    with_allocator = check(tmp_path, *nodes, our("allocator", "n1"), details=Details(chooses_by_volcano=False))
    assert ("ok", "chips are chosen by this project's allocator") in say(with_allocator)


@pytest.mark.parametrize(
    ("conf", "chooses"),
    [
        (THEIRS, True),
        ("tiers: [{plugins: [{name: gang}, {name: volcano-npu_v6}]}]", True),
        ('{"tiers": [{"plugins": [{"enableNodeOrder": true, "name": "volcano-npu_v6"}]}]}', True),
        ("tiers:\n- plugins:\n  - name: gang\n  # - name: volcano-npu_v6\n", False),
        ("actions: allocate\ntiers: null\n", False),
        ("", False),
        ("tiers: [{plugins", None),
        ("tiers: 1", None),
        ("[" * 100_000, None),
    ],
)
def test_mindclusters_plugin_is_found_in_volcanos_configuration(
    conf: str,
    chooses: bool | None,  # noqa: FBT001
    tmp_path: Path,
) -> None:
    assert find_details(read(tmp_path, config_of_volcano({"notes": conf})).manifests).chooses_by_volcano is None
    config = config_of_volcano({"volcano-scheduler.conf": conf, "notes": "volcano-npu: {"})
    assert find_details(read(tmp_path, config).manifests).chooses_by_volcano is chooses


DOCUMENTED = {"extender.ignorable": False, "extender.predicateVerb": "predicate", "extender.jobReadyVerb": "jobReady"}


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (None, ["ok: Volcano with the webhook alone"]),
        (DOCUMENTED, ["ok: Volcano with its extender plugin"]),
        (
            {"extender.ignorable": "True", "extender.onSessionOpenVerb": "x"},
            [
                "ok: Volcano with its extender plugin",
                "warning: Volcano may ignore calls of its extender plugin that fail",
                "warning: Volcano sends its whole snapshot in each session",
                "warning: Volcano does not call predicate of this allocator",
                "warning: Volcano does not call jobReady of this allocator",
            ],
        ),
    ],
)
def test_how_volcano_asks_this_allocator_is_said(
    arguments: dict[str, Any] | None, expected: list[str], tmp_path: Path
) -> None:
    extender = [] if arguments is None else [{"name": "extender", "arguments": arguments}]
    conf = json.dumps({"tiers": [{"plugins": [{"name": "gang"}, *extender]}]})
    nodes = [node("n1"), our("device-plugin", "n1"), our("allocator", "n1"), volcano()]
    found = say(check(tmp_path, *nodes, config_of_volcano({"volcano-scheduler.conf": conf})))
    assert [f"{severity}: {sentence}" for severity, sentence in found if sentence.startswith("Volcano")] == expected


def test_both_plugins_on_a_node_are_a_problem(tmp_path: Path) -> None:
    found = say(check(tmp_path, node("n1"), our("device-plugin", "n1"), their_plugin("n1"), our("allocator", "n1")))
    assert ("problem", "both device plugins on node n1") in found


def test_a_node_without_a_plugin_is_a_warning(tmp_path: Path) -> None:
    found = say(check(tmp_path, node("n1"), node("n2"), our("device-plugin", "n1"), our("allocator", "n1")))
    assert ("warning", "no pod of a known device plugin on node n2") in found


def test_pods_of_both_schedulers_on_a_node_are_a_problem(tmp_path: Path) -> None:
    both = [node("n1"), node("n2"), our("allocator", "n1"), volcano()]
    details = Details(chooses_by_volcano=True)
    apart = [placed("ours", "n1", by_volcano=False), placed("theirs", "n2", by_volcano=True)]
    assert ("warning", "this project's allocator and Volcano both choose chips") in say(
        check(tmp_path, *both, *apart, details=details)
    )
    mixed = [placed("ours", "n1", by_volcano=False), placed("theirs", "n1", by_volcano=True)]
    sentence = "node n1 has pods of both schedulers: default/ours of this allocator, default/theirs of Volcano"
    assert ("problem", sentence) in say(check(tmp_path, *both, *mixed, details=details))


def test_pods_that_no_leader_has_marked_are_told_apart_by_their_scheduler(tmp_path: Path) -> None:
    """An allocator without leader election marks none; those of Volcano may be anyone's then."""
    nodes, details = [node("n1"), our("allocator", "n1"), volcano()], Details(chooses_by_volcano=True)
    unmarked = placed("ours", "n1", by_volcano=False)
    del unmarked["metadata"]["annotations"][FENCE]
    theirs = placed("theirs", "n1", by_volcano=True)
    assert "problem" not in {
        severity for severity, _ in say(check(tmp_path, *nodes, unmarked, theirs, details=details))
    }
    marked = placed("marked", "n1", by_volcano=False)
    found = say(check(tmp_path, *nodes, unmarked, theirs, marked, details=details))
    assert [severity for severity, _ in found].count("problem") == 1


def test_pods_of_both_schedulers_are_no_problem_where_volcano_may_be_plain(tmp_path: Path) -> None:
    mixed = [placed("ours", "n1", by_volcano=False), placed("theirs", "n1", by_volcano=True)]
    found = say(check(tmp_path, node("n1"), our("allocator", "n1"), volcano(), *mixed))
    assert "problem" not in {severity for severity, _ in found}


def test_programs_that_have_ended_do_not_run(tmp_path: Path) -> None:
    ended = [our("allocator", "n1"), our("device-plugin", "n1"), their_plugin("n1"), volcano()]
    for each in ended:
        each["status"]["phase"] = "Succeeded"
    assert say(check(tmp_path, node("n1"), *ended)) == say(check(tmp_path, node("n1")))


def test_only_the_flags_of_plugins_that_run_count(tmp_path: Path) -> None:
    nodes = [node("n1"), node("n2"), our("allocator", "n1"), their_plugin("n1"), our("device-plugin", "n2")]
    found = check(tmp_path, *nodes, details=Details(plugins={"n1": FLAGS, "n2": "device-plugin"}))
    assert "problem" not in {each.severity for each in found}


def test_the_schedulers_pairing_is_said_only_where_it_chooses_alone(tmp_path: Path) -> None:
    nodes = [node("n1"), our("device-plugin", "n1"), our("allocator", "n1"), volcano()]
    found = say(check(tmp_path, *nodes, details=Details(chooses_by_volcano=True)))
    assert not [sentence for _, sentence in found if sentence.startswith("MindCluster's scheduler over")]


def test_the_plugins_of_pools_are_recognized(tmp_path: Path) -> None:
    found = say(check(tmp_path, node("n1"), our("device-plugin-big", "n1"), our("allocator", "n1")))
    assert ("ok", "this project's device plugin on node n1") in found


def test_a_plugin_that_is_not_ready_is_a_problem(tmp_path: Path) -> None:
    plugin = our("device-plugin", "n1")
    plugin["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    found = say(check(tmp_path, node("n1"), plugin, our("allocator", "n1")))
    assert ("problem", "the device plugin is not ready on node n1") in found


def test_plain_volcano_needs_no_right_to_write(tmp_path: Path) -> None:
    volcanos = "system:serviceaccount:volcano-system:volcano-scheduler"
    details = Details(volcano_users=frozenset({volcanos}), chooses_by_volcano=False, policies=("!(u in [])",))
    nodes = [node("n1"), our("device-plugin", "n1"), our("allocator", "n1"), volcano()]
    assert not [each for each in check(tmp_path, *nodes, details=details) if each.severity != "ok"]
    theirs = say(check(tmp_path, *nodes, details=replace(details, chooses_by_volcano=True)))
    assert ("problem", "the admission policy refuses what Volcano's scheduler writes on pods") in theirs


def test_what_cant_be_read_is_said(tmp_path: Path) -> None:
    details = Details(unread={"admission policies": "forbidden"})
    found = check(tmp_path, node("n1"), our("allocator", "n1"), details=details)
    assert ("warning", "admission policies can't be read: forbidden") in say(found)


def test_it_is_said_that_the_flags_are_unknown(tmp_path: Path) -> None:
    (found,) = (each for each in check(tmp_path, node("n1"), our("allocator", "n1"), their_plugin("n1")) if each.advice)
    assert "if it runs with -volcanoType=true, which is not known" in found.advice


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_pods_that_have_ended_count_for_nothing(phase: str, tmp_path: Path) -> None:
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(server.kubeconfig()))
        async with await KubeClient.connect(str(path)) as client:
            ended = await client.create(PODS, their_plugin("n1"), "kube-system")
            body = {"status": {"phase": phase}}
            await client.patch(PODS, ended.name, body, namespace="kube-system", subresource="status")
            assert await read_details(client) == Details(is_whole=True)


@pytest.mark.parametrize("status", [403, 500, 503, 504])
async def test_odd_objects_and_failed_requests_cost_only_themselves(status: int, tmp_path: Path) -> None:
    labels = {"name": "ascend-device-plugin-ds"}
    odd = {
        "metadata": {"name": "p", "namespace": "kube-system", "labels": labels},
        "spec": {"nodeName": "n1", "containers": None},
    }
    answers = {
        "/api/v1/pods": {"items": [odd]},
        "/api/v1/namespaces/volcano-system/configmaps/volcano-scheduler-configmap": {"data": 1},
    }

    async def answer(request: web.Request) -> web.Response:
        if request.path not in answers:
            failure = {"kind": "Status", "status": "Failure", "code": status, "message": "no"}
            return web.json_response(failure, status=status)
        return web.json_response(answers[request.path])

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    async with serve_http(app, "127.0.0.1:0") as address, AsyncExitStack() as stack:
        path = tmp_path / "kubeconfig"
        write_kubeconfig(path, f"http://{address}", "token")
        client = await stack.enter_async_context(await KubeClient.connect(str(path)))
        details = await read_details(client)
    assert (details.plugins, details.chooses_by_volcano) == ({"n1": ""}, None)
    assert set(details.unread) == {"admission policies", "Volcano's configuration", "fault rules", "Events"}
    assert "no" in details.unread["admission policies"]
    assert "`$.data`" in details.unread["Volcano's configuration"]


def test_it_is_said_that_volcanos_configuration_is_unknown(tmp_path: Path) -> None:
    alone = say(check(tmp_path, node("n1"), our("device-plugin", "n1"), volcano()))
    unknown = ", if ascend-for-volcano is in its configuration, which is not known"
    assert ("ok", f"chips are chosen by MindCluster's plugin of Volcano{unknown}") in alone
    found = say(check(tmp_path, node("n1"), our("allocator", "n1"), volcano()))
    assert any("if ascend-for-volcano is in its configuration, which is not known" in each for _, each in found)


def test_users_that_the_admission_policy_refuses_are_a_problem(tmp_path: Path) -> None:
    details = Details({"n1": FLAGS}, frozenset({USER}), policies=(f'!(u in ["x","{USER}-910"])',))
    nodes = [node("n1"), our("allocator", "n1"), their_plugin("n1")]
    refused = ("problem", "the admission policy refuses what MindCluster's device plugin writes on pods")
    assert refused in say(check(tmp_path, *nodes, details=details))
    allowed = replace(details, policies=(f'!(u in ["x","{USER}"])',))
    assert refused not in say(check(tmp_path, *nodes, details=allowed))


def config_of_volcano(data: object) -> Json:
    metadata = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def their_plugin_with(command_line: object) -> Json:
    plugin = their_plugin("n1")
    plugin["spec"] |= {"serviceAccountName": "ascend-device-plugin-sa"}
    plugin["spec"]["containers"][0] |= {"command": ["/bin/bash", "-c", "--"], "args": command_line}
    return plugin


DETAILS = Details({"n1": f"/bin/bash -c -- {FLAGS}"}, frozenset({USER}), chooses_by_volcano=True)


async def test_details_are_read_from_the_api_server(tmp_path: Path) -> None:
    async with ApiServer() as server:
        path = tmp_path / "kubeconfig"
        path.write_text(json.dumps(server.kubeconfig()))
        async with await KubeClient.connect(str(path)) as client:
            assert await read_details(client) == Details(is_whole=True)
            await client.create(PODS, their_plugin_with([FLAGS]), "kube-system")
            await client.request("POST", "/api/v1/namespaces", body={"metadata": {"name": "volcano-system"}})
            await client.create(CONFIG_MAPS, config_of_volcano({"volcano-scheduler.conf": THEIRS}), "volcano-system")
            assert await read_details(client) == replace(DETAILS, is_whole=True)


def test_details_are_found_in_files(tmp_path: Path) -> None:
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "annotations", "labels": {"app.kubernetes.io/part-of": OURS}},
        "spec": {
            "matchConditions": [
                {"name": "changes", "expression": "has(o)"},
                {"name": "by-others", "expression": "!(u in [])"},
            ]
        },
    }
    other = {**policy, "metadata": {"name": "other"}}
    config = config_of_volcano({"volcano-scheduler.conf": THEIRS})
    found = find_details(read(tmp_path, their_plugin_with([FLAGS]), config, policy, other).manifests)
    assert found == replace(DETAILS, policies=("!(u in [])",))
    assert find_details(read(tmp_path, node("n1"), pod("p", 1)).manifests) == Details()


def test_an_invalid_command_line_in_a_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    manifests = read(tmp_path, their_plugin_with([FLAGS, 1])).manifests
    with pytest.raises(InvalidValue, match=r"ascend-device-plugin-n1\): spec.containers\[0\].args\[1\]: Expected"):
        find_details(manifests)


def test_what_the_pods_of_both_projects_schedulers_say_is_read(tmp_path: Path) -> None:
    allocator = our("allocator", "n1")
    allocator["spec"]["containers"][0]["args"] = ['--scheduler-names=["default-scheduler","npu"]']
    allocator["metadata"]["labels"]["app.kubernetes.io/version"] = "1.0"
    control_plane = program("kube-scheduler-n1", "n1", {"component": "kube-scheduler"})
    control_plane["spec"]["containers"][0]["command"] = ["kube-scheduler", "--leader-elect=true"]
    found = find_details(read(tmp_path, allocator, control_plane).manifests)
    assert (found.served, found.versions) == (("default-scheduler", "npu"), {"allocator": frozenset({"1.0"})})
    assert found.kube_schedulers == ("kube-scheduler --leader-elect=true",)
    # With the chart's kube-scheduler, that of the control plane need not ask the allocator.
    found = find_details(read(tmp_path, allocator, control_plane, our("scheduler", "n1")).manifests)
    assert found.kube_schedulers == ()
    allocator["spec"]["containers"][0]["args"].append("--webhooks=pods,bindings")
    assert find_details(read(tmp_path, allocator, control_plane).manifests).kube_schedulers == ()


def test_halves_of_different_versions_are_a_warning(tmp_path: Path) -> None:
    halves = [our("allocator", "n1"), our("device-plugin", "n1")]
    for half, version in zip(halves, ("1.0", "2.0"), strict=True):
        half["metadata"]["labels"]["app.kubernetes.io/version"] = version
    sentence = "the programs have several versions: allocator 1.0; device-plugin 2.0"
    assert ("warning", sentence) in say(check(tmp_path, node("n1"), *halves))


def test_nothing_installed_is_a_problem_where_that_is_known(tmp_path: Path) -> None:
    nodes = [each.name for each in read(tmp_path, node("n1"), node("n2")).objects.nodes]
    objects = read(tmp_path, node("n1"), node("n2")).objects
    found = say(list(check_programs(objects, nodes, Details(is_whole=True), unserved={"n1"})))
    assert ("problem", "no device plugin on node n1") in found
    assert ("warning", "no pod of a known device plugin on node n2") in found


def test_an_allocator_that_is_not_ready_is_no_chooser_of_chips(tmp_path: Path) -> None:
    allocator = our("allocator", "n1")
    allocator["status"]["conditions"] = [{"type": "Ready", "status": "False"}]
    found = say(check(tmp_path, node("n1"), allocator, our("device-plugin", "n1")))
    assert ("problem", "no pod of the allocator is ready") in found
    assert not any(sentence.startswith("chips are chosen") for _, sentence in found)

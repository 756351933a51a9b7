"""What a container gets in each way of injection, and the CDI file."""

import json
from pathlib import Path

import pytest

from ascend.errors import Refusal
from ascend.vnpus import parse_vnpu
from device_plugin.device_types import DeviceType
from device_plugin.pods.cdi_file import ContainerInjector, list_folder
from device_plugin.pods.container_edits import CDI_FILE, Injection, InjectionSetting, detect, make_edits, offers_cdi


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    """A server with four chips and all optional device nodes except the fabric's."""
    root = tmp_path / "dev"
    root.mkdir()
    for node in ("davinci_manager", "hisi_hdc", "devmm_svm", "dvpp_cmdlist", *(f"davinci{n}" for n in range(4))):
        (root / node).touch()
    return root


def add_fabric(dev: Path) -> None:
    for node in ("uburma/udma1", "uburma/udma0", "ummu/tid"):
        (dev / node).parent.mkdir(exist_ok=True)
        (dev / node).touch()
    (dev / "uburma" / "a-folder").mkdir()


def given(dev: Path, injection: Injection) -> tuple[dict[str, str], list[str], tuple[str, ...]]:
    got = make_edits((3, 0), injection, dev, list_folder)
    assert all(outside == str(dev / inside.removeprefix("/dev/")) for inside, outside in got.devices.items())
    return got.envs, [inside.removeprefix("/dev/") for inside in got.devices], got.cdi_devices


ENVS = {"ASCEND_VISIBLE_DEVICES": "3,0", "ASCEND_RUNTIME_OPTIONS": ""}
NODES = ["davinci_manager", "hisi_hdc", "devmm_svm", "dvpp_cmdlist", "davinci3", "davinci0"]


@pytest.mark.parametrize(
    ("injection", "expected"),
    [
        ("runtime", (ENVS, [], ())),
        ("devices", ({}, NODES, ())),
        ("both", (ENVS, NODES, ())),
        ("cdi", ({}, [], ("huawei.com/npu=3", "huawei.com/npu=0"))),
    ],
)
def test_each_way_injects_the_chips_in_the_order_written_on_the_pod(
    dev: Path, injection: Injection, expected: object
) -> None:
    assert given(dev, injection) == expected


def test_optional_device_nodes_that_are_missing_are_left_out(dev: Path) -> None:
    for node in ("hisi_hdc", "dvpp_cmdlist"):
        (dev / node).unlink()
    assert given(dev, "devices")[1] == ["davinci_manager", "devmm_svm", "davinci3", "davinci0"]


def test_all_device_nodes_of_the_fabric_are_injected(dev: Path) -> None:
    add_fabric(dev)
    assert given(dev, "devices")[1][4:7] == ["uburma/udma0", "uburma/udma1", "ummu/tid"]


@pytest.mark.parametrize("injection", ["devices", "both"])
@pytest.mark.parametrize("missing", ["davinci_manager", "davinci3"])
def test_without_a_required_device_node_the_container_is_refused(dev: Path, injection: Injection, missing: str) -> None:
    (dev / missing).unlink()
    with pytest.raises(Refusal, match=f"{missing} is missing") as refused:
        given(dev, injection)
    assert refused.value.reason == "DeviceNodeMissing"


@pytest.mark.parametrize(
    ("setting", "mark", "cdi", "way"),
    [
        ("auto", {"ASCEND_DOCKER_RUNTIME": "True"}, True, "runtime"),
        ("auto", {"ASCEND_DOCKER_RUNTIME": "true"}, False, "devices"),
        ("auto", {}, False, "devices"),
        ("auto", {}, True, "cdi"),
        ("cdi", {"ASCEND_DOCKER_RUNTIME": "True"}, False, "cdi"),
        ("devices", {}, True, "devices"),
    ],
)
def test_by_default_the_way_is_that_of_the_runtime_that_runs_the_plugin(
    setting: InjectionSetting, mark: dict[str, str], *, cdi: bool, way: Injection
) -> None:
    assert detect(setting, mark, cdi=cdi) == way


@pytest.mark.parametrize(
    ("runtime", "kubelet", "offers"),
    [
        ("containerd://2.0.0", "v1.29.0", True),
        ("containerd://v2.1.4-k3s1", "v1.34.1+k3s1", True),
        ("containerd://10.0.1", "v2.0.0", True),
        ("cri-o://1.34.0", "v1.34.4", True),
        ("containerd://1.7.28", "v1.34.4", False),
        ("containerd://1.6.20~ds1", "v1.34.4", False),
        ("containerd://2.1.4", "v1.28.9", False),
        ("cri-o://1.27.4", "v1.29.0", False),
        ("docker://27.0.1", "v1.34.4", False),
        ("containerd://", "v1.34.4", False),
        ("containerd://two", "v1.34.4", False),
        ("containerd://2.1.4", "", False),
        ("Unknown", "Unknown", False),
        ("", "", False),
    ],
)
def test_cdi_is_offered_by_the_versions_that_have_it_on_by_default(runtime: str, kubelet: str, *, offers: bool) -> None:
    assert offers_cdi(runtime, kubelet) == offers


def test_the_cdi_file_has_every_chip_and_the_shared_device_nodes(dev: Path, tmp_path: Path) -> None:
    ContainerInjector("cdi", dev, tmp_path / "cdi").prepare(range(2))
    file = tmp_path / "cdi" / CDI_FILE

    def edits(*nodes: str) -> dict[str, object]:
        nodes_ = [{"path": f"/dev/{node}", "hostPath": str(dev / node), "permissions": "rw"} for node in nodes]
        return {"deviceNodes": nodes_}

    assert json.loads(file.read_text()) == {
        "cdiVersion": "0.5.0",
        "kind": "huawei.com/npu",
        "devices": [
            {"name": "0", "containerEdits": edits("davinci0")},
            {"name": "1", "containerEdits": edits("davinci1")},
        ],
        "containerEdits": edits("davinci_manager", "hisi_hdc", "devmm_svm", "dvpp_cmdlist"),
    }
    assert file.stat().st_mode & 0o777 == 0o644
    assert [each.name for each in file.parent.iterdir()] == [CDI_FILE]


def test_the_cdi_file_is_written_only_on_changes_and_loses_no_name(dev: Path, tmp_path: Path) -> None:
    file = tmp_path / CDI_FILE

    def prepare(*chips: int) -> tuple[int, list[str]]:
        # A new injector each time, as after an upgrade of the plugin.
        ContainerInjector("cdi", dev, tmp_path).prepare(chips)
        return file.stat().st_ino, [each["name"] for each in json.loads(file.read_text())["devices"]]

    first, names = prepare(0, 1)
    assert names == ["0", "1"]
    assert prepare(1, 0) == (first, ["0", "1"])
    assert prepare(0, 2)[1] == ["0", "1", "2"]
    assert prepare(0)[1] == ["0", "1", "2"]
    add_fabric(dev)
    fourth, _ = prepare(0)
    assert prepare(0)[0] == fourth
    file.unlink()
    assert prepare(0)[1] == ["0"]


@pytest.mark.parametrize("garbage", ["", "{", "[]", '{"devices": [{"name": "x"}]}', '{"devices": null}'])
def test_an_unreadable_cdi_file_is_replaced(dev: Path, tmp_path: Path, garbage: str) -> None:
    (tmp_path / CDI_FILE).write_text(garbage)
    ContainerInjector("cdi", dev, tmp_path).prepare([5])
    assert [each["name"] for each in json.loads((tmp_path / CDI_FILE).read_text())["devices"]] == ["5"]


def test_without_a_writable_cdi_file_the_container_is_refused(
    dev: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refusal, match=r"File exists|Not a directory") as refused:
        ContainerInjector("cdi", dev, tmp_path / "file").inject((1,))
    assert refused.value.reason == "CdiFileNotWritten"

    def fail(_self: Path, _target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(Refusal, match="No space left on device"):
        ContainerInjector("cdi", dev, tmp_path / "cdi").inject((1,))
    assert not list((tmp_path / "cdi").iterdir())


def test_a_device_is_named_only_once_the_cdi_file_has_it(dev: Path, tmp_path: Path) -> None:
    injector = ContainerInjector("cdi", dev, tmp_path)
    injector.prepare(range(2))
    assert injector.inject((3,)).cdi_devices == ("huawei.com/npu=3",)
    assert [each["name"] for each in json.loads((tmp_path / CDI_FILE).read_text())["devices"]] == ["0", "1", "3"]


VNPU = DeviceType("2c").parse("Ascend910-2c-100-1")
VNPU_ENVS = {"ASCEND_VISIBLE_DEVICES": "100", "ASCEND_RUNTIME_OPTIONS": "VIRTUAL"}


@pytest.mark.parametrize(
    ("injection", "envs", "has_node", "cdi"),
    [
        ("runtime", VNPU_ENVS, False, ()),
        ("devices", {}, True, ()),
        ("both", VNPU_ENVS, True, ()),
        ("cdi", {}, False, ("huawei.com/npu=Ascend910-2c-100-1",)),
    ],
)
def test_each_way_injects_a_vnpu(
    dev: Path, injection: Injection, envs: object, *, has_node: bool, cdi: tuple[str, ...]
) -> None:
    (dev / "vdavinci100").touch()
    got = make_edits((VNPU,), injection, dev, list_folder, device_type=DeviceType("2c"))
    assert (got.envs, got.cdi_devices) == (envs, cdi)
    own = {inside: outside for inside, outside in got.devices.items() if inside.startswith("/dev/davinci1")}
    assert own == ({"/dev/davinci100": str(dev / "vdavinci100")} if has_node else {})
    assert ("/dev/davinci_manager" in got.devices) == has_node


def test_a_vnpu_without_a_device_node_is_refused(dev: Path) -> None:
    with pytest.raises(Refusal, match="vdavinci100 is missing"):
        make_edits((VNPU,), "devices", dev, list_folder, device_type=DeviceType("2c"))


def test_the_cdi_file_keeps_the_names_of_vnpus(dev: Path, tmp_path: Path) -> None:
    ContainerInjector("cdi", dev, tmp_path).inject((VNPU,), DeviceType("2c"))
    ContainerInjector("cdi", dev, tmp_path).prepare([0], [parse_vnpu("Ascend910-4c-101-2")])
    devices = {each["name"]: each for each in json.loads((tmp_path / CDI_FILE).read_text())["devices"]}
    assert list(devices) == ["0", "Ascend910-2c-100-1", "Ascend910-4c-101-2"]
    (node,) = devices["Ascend910-2c-100-1"]["containerEdits"]["deviceNodes"]
    assert node == {"path": "/dev/davinci100", "hostPath": str(dev / "vdavinci100"), "permissions": "rw"}

"""The Dockerfile, the examples and the wheels agree with the code and the chart."""

import json
import re
import subprocess
import sys
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from typing import Any

import msgspec
import yaml

from allocator.binding.binder import ANSWER_TIMEOUT_S
from allocator.settings import Settings
from ascend.chips import RESOURCE
from ascend.products import PRODUCTS
from ascend.templates import RESOURCE_CORES
from ascend.vnpus import SUFFIXES, resource_of
from device_plugin.driver import ChipState
from device_plugin.driver.simulated import SimulatedDriver
from device_plugin.driver.simulated_cuts import SimulatedCuts
from device_plugin.driver.simulated_events import SimulatedEvents
from device_plugin.driver.simulated_file import SimulatedChip, SimulatedServer, SimulatedVirtualNpu
from device_plugin.driver.simulated_resets import SimulatedReset
from device_plugin.driver.simulated_switches import SimulatedSwitchFault
from device_plugin.driver.simulated_telemetry import SimulatedTelemetry
from tests.deploy.helm import CHART, REPOSITORY

SANDBOX = REPOSITORY / "sandbox"


def read_project(folder: Path) -> dict[str, Any]:
    document = tomllib.loads((folder / "pyproject.toml").read_text())
    project: dict[str, Any] = document["project"]
    return project


def build_wheel(project: Path, folder: Path) -> tuple[set[str], Message]:
    """Build a project's wheel without the network; return its top-level names and its metadata."""
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=project, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as wheel:
        names = {name.partition("/")[0] for name in wheel.namelist()}
        (info,) = (name for name in names if name.endswith(".dist-info"))
        return names - {info}, message_from_bytes(wheel.read(f"{info}/METADATA"))


def test_the_image_contains_the_default_wheel_and_no_sandbox() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    files = ["pyproject.toml", "uv.lock", project["project"]["readme"], *project["project"]["license-files"]]
    # uv checks the lock file against the metadata of every workspace member.
    files += [f"{member}/pyproject.toml" for member in project["tool"]["uv"]["workspace"]["members"]]
    lines = [line.split() for line in (REPOSITORY / "Dockerfile").read_text().splitlines()]
    copied = [line[1:-1] for line in lines if line[:1] == ["COPY"]]
    into_the_build = [word.rstrip("/") for words in copied if words[0] != "--from=build" for word in words]
    files += ["deploy/image/notices.py", "deploy/image/prune.sh"]
    assert sorted(into_the_build) == sorted([*packages, *files])
    into_the_image = [words[1] for words in copied if words[0] == "--from=build"]
    assert into_the_image == ["/opt/dependencies", "/opt/programs"]
    allowed = [line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert sorted(allowed) == sorted([*packages, *files])
    assert "sandbox" not in packages
    assert set(re.findall(r"--extra (\S+)", (REPOSITORY / "Dockerfile").read_text())) == {"programs", "web"}


def test_the_default_wheel_contains_the_programs_and_no_sandbox(tmp_path: Path) -> None:
    names, metadata = build_wheel(REPOSITORY, tmp_path)
    assert names == {"allocator", "ascend", "device_plugin", "npuctl", "protos"}
    requirements = [str(each) for each in metadata.get_all("Requires-Dist") or ()]
    assert not [each for each in requirements if "sandbox" in each and "extra ==" not in each]


def test_the_extra_installs_the_wheel_of_the_sandbox(tmp_path: Path) -> None:
    names, metadata = build_wheel(SANDBOX, tmp_path)
    assert names == {"sandbox"}
    project = read_project(REPOSITORY)
    assert project["optional-dependencies"]["sandbox"] == [f"{metadata['Name']}=={metadata['Version']}"]
    assert f"{project['name']}[programs]=={project['version']}" in (metadata.get_all("Requires-Dist") or ())


def test_make_demo_installs_the_extra() -> None:
    recipe = (REPOSITORY / "Makefile").read_text().partition("\ndemo:")[2].partition("\n\n")[0]
    assert "--no-dev --extra sandbox python -m sandbox.demo" in recipe


def test_the_image_runs_as_an_unprivileged_user() -> None:
    *_, last_stage = (REPOSITORY / "Dockerfile").read_text().split("\nFROM ")
    users = [line for line in last_stage.splitlines() if line.startswith("USER ")]
    assert users == ["USER 65532:65532"]


def test_chart_programs_and_sandbox_have_one_version() -> None:
    version = read_project(REPOSITORY)["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    labels = (REPOSITORY / "Dockerfile").read_text().split("\nLABEL ")[1].split("\n\n")[0]
    assert f'org.opencontainers.image.version="{version}"' in labels


def test_the_chart_accepts_the_chips_of_the_products_table() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    chips = schema["definitions"]["simulatedServer"]["properties"]["product"]["enum"]
    assert set(chips) == {product.chip for product in PRODUCTS.values()} - {""}


def test_the_simulated_driver_reads_the_charts_chips(tmp_path: Path) -> None:
    server = yaml.safe_load((CHART / "values.yaml").read_text())["devicePlugin"]["driver"]["simulated"]["server"]
    (tmp_path / "simulated.json").write_bytes(msgspec.json.encode(server))
    driver = SimulatedDriver(tmp_path / "simulated.json")
    chips = driver.discover().chips
    assert [chip.phy_id for chip in chips] == list(range(8))
    assert all(driver.read(chip) == ChipState() for chip in chips)


def test_the_scheduler_configuration_has_what_the_allocator_needs() -> None:
    configuration = yaml.safe_load((CHART / "kube-scheduler.yaml").read_text())
    (extender,) = configuration["extenders"]
    assert configuration["percentageOfNodesToScore"] == 100
    verbs = {key: value for key, value in extender.items() if key.endswith("Verb")}
    # Filter names one node: a prioritizeVerb would never be called.
    assert verbs == {"filterVerb": "filter", "preemptVerb": "preempt", "bindVerb": "bind"}
    assert extender["ignorable"] is False
    assert extender["nodeCacheCapable"] is True
    managed = [RESOURCE, RESOURCE_CORES, *map(resource_of, SUFFIXES.values())]
    assert extender["managedResources"] == [{"name": name, "ignoredByScheduler": False} for name in managed]


def test_kube_scheduler_waits_for_longer_than_a_binding_is_held() -> None:
    (extender,) = yaml.safe_load((CHART / "kube-scheduler.yaml").read_text())["extenders"]
    assert float(extender["httpTimeout"].removesuffix("s")) > Settings().gang_hold_s + ANSWER_TIMEOUT_S


def test_the_pods_of_the_first_hour_run_until_their_reader_deletes_them() -> None:
    texts = [(REPOSITORY / path).read_text() for path in ("docs/first-hour.md", "deploy/examples/job.yaml")]
    assert [int(seconds) for text in texts for seconds in re.findall(r"\bsleep (\d+)", text)] == [3600, 3600]


def test_the_notes_need_no_file_that_the_chart_has_not() -> None:
    notes = (CHART / "templates" / "NOTES.txt").read_text()
    assert "deploy/" not in notes.replace("deploy/charts/ascend-affinity in the repository", "")
    assert (CHART / "kube-scheduler.yaml").is_file()


def test_the_values_accept_and_a_page_explains_every_field_of_a_simulated_server() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["definitions"]["simulatedServer"]["properties"]
    chip = schema["chips"]["items"]["properties"]
    virtual = chip["vnpus"]["items"]["properties"]
    fault = schema["switch_faults"]["anyOf"][1]["items"]["properties"]
    switches = (fault, SimulatedSwitchFault)
    events = schema["events"]["anyOf"][1]["properties"]
    assert set(events) == set(SimulatedEvents.__struct_fields__)
    telemetry = (chip["telemetry"]["anyOf"][1]["properties"], SimulatedTelemetry)
    chips = ((chip, SimulatedChip), (virtual, SimulatedVirtualNpu), telemetry)
    resets, cuts = (schema["reset"]["properties"], SimulatedReset), (schema["cuts"]["properties"], SimulatedCuts)
    _, _, page = (REPOSITORY / "docs" / "device-plugin-reference.md").read_text().partition("\n## Simulated chips\n")
    for fields, struct in ((schema, SimulatedServer), *chips, switches, resets, cuts):
        assert set(fields) == set(struct.__struct_fields__)
    for name in SimulatedServer.__struct_fields__ + SimulatedChip.__struct_fields__ + telemetry[1].__struct_fields__:
        assert re.search(rf"[`\"]{name}[`\"]", page), name

"""The image, built from the Dockerfile: what is in it, that its programs run, and how releases are named."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.deploy import image
from tests.deploy.helm import REPOSITORY

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(900)]

BUILD = REPOSITORY / "deploy" / "image" / "build.sh"
MEGABYTE = 1_000_000
ENVIRONMENT = Path("opt/ascend-affinity")
ON_IT = (
    *("tests/ascend", "tests/allocator/rules", "tests/allocator/serving/test_tls.py"),
    *("tests/device_plugin/test_kubelet_identity.py", "tests/device_plugin/test_pods_api.py"),
    # These read the sources, and run a shell.
    "--ignore=tests/ascend/test_reasons.py",
    "--deselect=tests/ascend/kube/test_client.py::test_an_exec_plugin_provides_the_identity",
)
"""What runs on the image's Python: TLS, HTTP, gRPC, settings, decoders and rules, rather than all of it again."""
PROGRAMS = ("ascend-allocator", "ascend-device-plugin", "npuctl", "kubectl-npu")


@pytest.fixture(scope="module")
def root(built_image: image.Image, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image's root file system."""
    folder = tmp_path_factory.mktemp("root")
    folder.chmod(0o755)
    built_image.unpack(folder)
    return folder


def run(root: Path, *command: str) -> str:
    """Run a program in the root file system as the image's user, which may write nothing there."""
    inside = ["chroot", "--userspec=65532:65532", str(root), *command]
    path = f"/{ENVIRONMENT}/bin:/usr/bin:/usr/sbin:/bin:/sbin"
    environment = {"PATH": path, "HOME": "/", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(inside, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.usefixtures("built_image")
def test_a_build_that_was_killed_does_not_keep_later_ones_from_removing_its_layers() -> None:
    with image.locked():
        image.buildah("from", "scratch")
        assert image.buildah("containers", "--quiet").strip()
        image.remove_unfinished()
        assert not image.buildah("containers", "--quiet").strip()


def test_the_image_is_small_and_an_upgrade_pulls_only_the_programs(built_image: image.Image) -> None:
    base, dependencies, programs = built_image.layers().values()
    assert base < 75 * MEGABYTE
    assert dependencies < 125 * MEGABYTE  # of which the page of npuctl web needs 50
    assert programs < 10 * MEGABYTE


def test_no_build_tool_no_test_and_no_shell_is_in_the_image(root: Path) -> None:
    programs = {path.name for folder in ("bin", "usr/bin", "usr/local/bin") for path in (root / folder).glob("*")}
    assert not programs & {"sh", "bash", "dash", "apt", "apt-get", "pip", "pip3", "uv", "gcc", "perl"}
    packages = next((root / ENVIRONMENT).glob("lib/python3.*/site-packages"))
    assert {path.name for path in packages.iterdir()} >= {"allocator", "ascend", "device_plugin", "npuctl", "protos"}
    assert not [
        path.name for path in packages.iterdir() if path.name in {"pip", "setuptools", "sandbox", "tests", "uv"}
    ]
    assert not [*packages.rglob("tests"), *packages.rglob("*.pyx"), *packages.rglob("*.c")]


def test_each_module_has_one_file_of_byte_code(root: Path) -> None:
    packages = next((root / ENVIRONMENT).glob("lib/python3.*/site-packages"))
    for package in ("allocator", "ascend", "device_plugin", "npuctl", "protos", "grpc", "aiohttp"):
        modules = {path.relative_to(packages) for path in (packages / package).rglob("*.py")}
        compiled = [path.relative_to(packages) for path in (packages / package).rglob("*.pyc")]
        assert {path.parent.parent / f"{path.name.split('.')[0]}.py" for path in compiled} == modules
        assert len(compiled) == len(modules)


def test_the_bill_of_materials_lists_exactly_the_installed_packages(root: Path) -> None:
    listed = json.loads((root / ENVIRONMENT / "share" / "sbom.cdx.json").read_text())
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "ascend-affinity")
    packages = next((root / ENVIRONMENT).glob("lib/python3.*/site-packages"))
    names = [path.name.removesuffix(".dist-info").rsplit("-", 1) for path in packages.glob("*.dist-info")]
    installed = {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in names}
    del installed["ascend-affinity"]
    bill = {each["name"]: each for each in listed["components"]}
    assert installed == {name: bill[name]["version"] for name in installed if name in bill}
    # Packages of other platforms are in the lock file too.
    elsewhere = [each for name, each in bill.items() if name not in installed]
    assert all(_marker(each) for each in elsewhere), elsewhere
    assert all(each["purl"] == f"pkg:pypi/{name}@{each['version']}" for name, each in bill.items())


def test_the_base_lists_its_packages(root: Path) -> None:
    status = (root / "var" / "lib" / "dpkg" / "status").read_text()
    listed = set(re.findall(r"^Package: (\S+)$", status, re.MULTILINE))
    assert listed >= {"libc6", "libssl3t64", "libstdc++6", "python3.13-minimal", "ca-certificates"}
    folders = {path.name for path in (root / "usr" / "share" / "doc").iterdir() if (path / "copyright").exists()}
    # Debian gives these the folders of other packages, built of the same sources, as links.
    linked = {"libgcc-s1", "libstdc++6", "libncursesw6", "libpython3.13-stdlib"}
    assert folders == listed - linked
    assert len(re.findall(r"^Version: \S+$", status, re.MULTILINE)) == len(listed)


def test_the_licences_of_all_packages_are_beside_it(root: Path) -> None:
    text = (root / ENVIRONMENT / "share" / "THIRD-PARTY-NOTICES.txt").read_text()
    packages = next((root / ENVIRONMENT).glob("lib/python3.*/site-packages"))
    names = [path.name.removesuffix(".dist-info").rsplit("-", 1) for path in packages.glob("*.dist-info")]
    stated = {re.sub(r"[-_.]+", "-", line.split()[0]).lower() for line in re.findall(r"={80}\n(.*)", text)}
    assert stated == {re.sub(r"[-_.]+", "-", name).lower() for name, _ in names if name != "ascend_affinity"}
    assert "Copyright 2014 gRPC authors" in text or "Apache License" in text
    # The base's own, for which the text refers to them.
    assert (root / "usr/share/doc/libc6/copyright").stat().st_size


def _marker(component: dict[str, Any]) -> str:
    properties = {each["name"]: each["value"] for each in component.get("properties", ())}
    return str(properties.get("uv:package:marker", ""))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_programs_run_as_the_unprivileged_user(root: Path, program: str) -> None:
    assert "usage" in run(root, program, "--help").lower()


def test_the_images_python_is_one_that_gets_bug_fixes(root: Path) -> None:
    version = json.loads(run(root, "python", "-c", "import sys; print(list(sys.version_info[:2]))"))
    assert version >= [3, 13]  # Debian 13 mends its own until 2028


def test_all_modules_of_the_programs_can_be_imported(root: Path) -> None:
    walk = (
        "import importlib, pkgutil\n"
        "for name in ('allocator', 'ascend', 'device_plugin', 'npuctl', 'protos'):\n"
        "    package = importlib.import_module(name)\n"
        "    for module in pkgutil.walk_packages(package.__path__, f'{name}.'):\n"
        "        if not module.name.endswith('__main__') and module.name != 'protos.generate':\n"
        "            importlib.import_module(module.name)\n"
    )
    run(root, "python", "-c", walk)


def test_the_tests_pass_on_the_images_python(built_image: image.Image, tmp_path: Path) -> None:
    # The image's own programs and packages are tested, not copies: beside them are only the tests and what they need.
    root = tmp_path
    built_image.unpack(root)
    packages = next((root / ENVIRONMENT).glob("lib/python3.*/site-packages"))
    image.install_test_requirements(root / "test-packages", Path("/") / packages.relative_to(root))
    (packages / "zz-tests.pth").write_text("/test-packages\n/sources\n")
    for folder in ("tests", "sandbox", "deploy", "docs"):
        shutil.copytree(REPOSITORY / folder, root / "sources" / folder, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(REPOSITORY / "pyproject.toml", root / "sources")
    (root / "etc" / "hosts").write_text("127.0.0.1 localhost\n")  # kubelets write it in pods
    pytest_options = ("-q", "-p", "no:cacheprovider", "-p", "no:randomly", "-m", "not real and not long")
    done = image.run_mounted(root, "/sources", f"/{ENVIRONMENT}/bin/python", "-m", "pytest", *pytest_options, *ON_IT)
    assert not done.returncode, done.stdout[-4000:] + done.stderr[-2000:]
    assert re.search(r"^\d{3,} passed", done.stdout.splitlines()[-1]), done.stdout[-500:]


def test_what_we_use_of_the_pruned_client_library_works(root: Path) -> None:
    # Without an address in the file: the library has been loaded, and has read it.
    kubeconfig = root / "kubeconfig"
    users = [{"name": "u", "user": {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "token"}}}]
    clusters = [{"name": "c", "cluster": {"server": "https://[::1]:1"}}]
    contexts = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    document = {"current-context": "x", "users": users, "clusters": clusters, "contexts": contexts}
    kubeconfig.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **document}))
    token = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "secret"}}
    plugin = root / "usr" / "bin" / "token"
    plugin.write_text(f"#!/{ENVIRONMENT}/bin/python\nprint('''{json.dumps(token)}''')\n")
    plugin.chmod(0o755)
    loads = (
        "import asyncio\n"
        "from ascend.kube.identity import load_access\n"
        "from kubernetes.utils.quantity import parse_quantity\n"
        "async def main():\n"
        "    access = await load_access('/kubeconfig')\n"
        "    print(access.url, (await access.headers())['authorization'], parse_quantity('2k'))\n"
        "asyncio.run(main())\n"
    )
    assert run(root, "python", "-c", loads) == "https://[::1]:1 Bearer secret 2000\n"


def test_labels_name_the_commit_and_the_base(built_image: image.Image) -> None:
    config = built_image.config()["config"]
    labels = {key.removeprefix("org.opencontainers.image."): value for key, value in config["Labels"].items()}
    assert labels["title"] == "ascend-affinity"
    assert re.fullmatch(r"[0-9a-f]{40}(-modified)?", labels["revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", labels["created"])
    assert labels["base.name"].startswith("localhost/base:")
    assert config["User"] == "65532:65532"


@pytest.mark.parametrize("pinned", ["", "BASE", "BUILD_BASE"])
def test_a_release_without_digests_of_its_bases_is_refused(pinned: str, tmp_path: Path) -> None:
    builder = tmp_path / "builder"
    builder.write_text("#!/bin/sh\necho built\n")
    builder.chmod(0o755)
    bases = {name: "base@sha256:" + 64 * "0" if name == pinned else "base:1" for name in ("BASE", "BUILD_BASE")}
    environment = {"PATH": "/usr/bin:/bin", "BUILDER": str(builder), "RELEASE": "1", **bases}
    done = subprocess.run([str(BUILD), "name:1"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "names its base by digest: base:1 has none" in done.stderr
    assert "built" not in done.stdout


@pytest.mark.parametrize("changed", [False, True])
def test_a_release_of_a_commit_with_digests_of_its_bases_is_built(tmp_path: Path, *, changed: bool) -> None:
    def git(*arguments: str) -> str:
        who = ["-c", "user.name=test", "-c", "user.email=test@example.com"]
        command = ["git", "-C", str(source), *who, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    source = tmp_path / "source"
    (source / "deploy" / "image").mkdir(parents=True)
    shutil.copy(BUILD, source / "deploy" / "image")
    git("init", "--quiet")
    git("add", "--all")
    git("commit", "--quiet", "--message=A release")
    if changed:
        (source / "Dockerfile").write_text("FROM scratch\n")
    builder = tmp_path / "builder"
    builder.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    builder.chmod(0o755)
    bases = {name: f"registry.example/{name.lower()}@sha256:{64 * '0'}" for name in ("BASE", "BUILD_BASE")}
    environment = {"PATH": "/usr/bin:/bin", "BUILDER": str(builder), "RELEASE": "1", **bases}
    command = [str(source / "deploy" / "image" / "build.sh"), "name:1", "--platform=linux/arm64"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if changed:
        assert (done.returncode, done.stdout) == (1, "")
        assert "a release is built from a commit, but these files differ:\n?? Dockerfile" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert words[:3] == ["build", "--tag", "name:1"]
    assert {"--platform=linux/arm64", *(f"{name}={base}" for name, base in bases.items())} <= {*words}
    labels = dict(word.split("=", 1) for word in words if word.startswith("org.opencontainers.image."))
    assert labels["org.opencontainers.image.revision"] == git("rev-parse", "HEAD")
    assert labels["org.opencontainers.image.base.name"] == "registry.example/base"
    assert labels["org.opencontainers.image.base.digest"] == f"sha256:{64 * '0'}"


def test_the_programs_run_on_arm64_under_qemu(tmp_path: Path) -> None:
    emulator = shutil.which("qemu-aarch64-static")
    if emulator is None:
        pytest.skip("qemu-aarch64-static of the Debian package qemu-user-static is not installed")
    built = image.build(platform="arm64")
    built.unpack(tmp_path)
    shutil.copy(emulator, tmp_path)
    for program in PROGRAMS:
        python, script = (f"/{ENVIRONMENT}/bin/{name}" for name in ("python", program))
        command = ["chroot", str(tmp_path), "/qemu-aarch64-static", python, script, "--help"]
        assert "usage" in subprocess.run(command, capture_output=True, text=True, check=True).stdout.lower()
    loads = "import grpc, uvloop, os; print(os.uname().machine)"
    machine = ["chroot", str(tmp_path), "/qemu-aarch64-static", python, "-c", loads]
    assert subprocess.run(machine, capture_output=True, text=True, check=True).stdout == "aarch64\n"

"""`make release`: what it makes, that it makes the same again, and that whoever changes a byte of it is found out."""

import base64
import hashlib
import io
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclonedx.model.bom import Bom

from deploy.release import checking
from deploy.release.errors import ReleaseError
from deploy.release.settings import FILE_PLATFORMS
from tests.deploy import helm, image
from tests.deploy.helm import REPOSITORY

pytestmark = pytest.mark.timeout(300)

BASE = f"registry.example/python@sha256:{64 * '1'}"
STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Version: 2.41-12+deb13u1

Package: netbase
Status: deinstall ok not-installed
Architecture: all
Version: 6.5
"""


# npuctl as a file for this machine: `make setup` has its wheels already.
MACHINE = {"x86_64": "linux-amd64", "aarch64": "linux-arm64"}[platform.machine()]
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
FILE = {
    "UV": shutil.which("uv") or str(REPOSITORY / ".tools" / "bin" / "uv"),
    "UV_OFFLINE": "1",
    "NPUCTL_PLATFORMS": MACHINE,
    "NPUCTL_PYTHONS": PYTHON,
}


def command(*words: str, folder: Path = REPOSITORY, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with only these variables."""
    # No locale and nothing of the caller: a release does not depend on them.
    named = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"), **environment}
    return subprocess.run(words, cwd=folder, env=named, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The working tree as a commit."""
    folder = tmp_path_factory.mktemp("source")
    names = command("git", "ls-files", "--cached", "--others", "--exclude-standard").stdout.splitlines()
    for name in (name for name in names if (REPOSITORY / name).is_file()):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, folder / name)
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "-A"), (*author, "commit", "-qm", "A release")):
        done = command("git", *words, folder=folder)
        assert not done.returncode, done.stderr
    return folder


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A private and a public key, made as the documentation says."""
    folder = tmp_path_factory.mktemp("keys")
    private, public = folder / "release.key", folder / "release.pub"
    make = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out"]
    assert not command("openssl", *make, str(private)).returncode
    assert not command("openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)).returncode
    return private, public


def archive(path: Path, architecture: str) -> Path:
    """A small image in an OCI archive, with what the build writes into each."""
    share = "opt/ascend-affinity/share"
    bill = {"bomFormat": "CycloneDX", "specVersion": "1.5", "components": [{"type": "library", "name": "msgspec"}]}
    files = {f"{share}/sbom.cdx.json": json.dumps(bill), f"{share}/THIRD-PARTY-NOTICES.txt": "Licences\n"}
    files |= {"var/lib/dpkg/status": STATUS, "usr/lib/os-release": 'ID=debian\nVERSION_ID="13"\n'}
    layer = packed({f"./{name}": text.encode() for name, text in files.items()})
    config = json.dumps({"architecture": architecture, "config": {"Env": ["PYTHON_VERSION=3.13.9"]}}).encode()
    blobs = {f"sha256:{hashlib.sha256(blob).hexdigest()}": blob for blob in (config, layer)}
    configured, rooted = ({"digest": digest, "size": len(blob)} for digest, blob in blobs.items())
    manifest = json.dumps({"schemaVersion": 2, "config": configured, "layers": [rooted]}).encode()
    digest = f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    kind = "application/vnd.oci.image.manifest.v1+json"
    top = {"manifests": [{"mediaType": kind, "digest": digest, "size": len(manifest)}]}
    named = {f"blobs/{name.replace(':', '/')}": blob for name, blob in ({**blobs, digest: manifest}).items()}
    path.write_bytes(packed({"index.json": json.dumps(top).encode(), **named}))
    return path


def packed(files: Mapping[str, bytes]) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as written:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            written.addfile(entry, io.BytesIO(data))
    return content.getvalue()


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of buildah, whose images take minutes: `build` does nothing, `push` has the small images above."""
    folder = tmp_path_factory.mktemp("builder")
    for architecture in ("amd64", "arm64"):
        archive(folder / f"{architecture}.tar", architecture)
    script = folder / "buildah"
    script.write_text(
        "#!/bin/sh\n"
        'case $1 in push) name=${2##*:}; cp "$(dirname "$0")/$name.tar" "${3#oci-archive:}" ;;\n'
        '  build) echo "$@" >> "$(dirname "$0")/built" ;; esac\n'
    )
    script.chmod(0o755)
    return script


def make(source: Path, output: Path, builder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Make a release of a commit."""
    named = {"BASE": BASE, "BUILDER": str(builder), "HELM": str(helm.path()), **FILE, **variables}
    return command(sys.executable, "-m", "deploy.release", "build", "--output", str(output), folder=source, **named)


@pytest.fixture(scope="module")
def made(
    source: Path, builder: Path, keys: tuple[Path, Path], built_helm: None, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The files of a release, signed."""
    assert built_helm is None
    output = tmp_path_factory.mktemp("release") / "dist"
    named = {"RELEASE_KEY": str(keys[0]), "RELEASE_REPOSITORY": "registry.example/ascend-affinity"}
    done = make(source, output, builder, RELEASE_BUILDER="https://example.org/builder", **named)
    assert not done.returncode, done.stderr
    others = ", ".join(name for name in FILE_PLATFORMS if name != MACHINE)
    assert re.findall("NOT .*", done.stdout) == [f"NOT BUILT: npuctl as a file for {others}"]
    assert {"SHA256SUMS", "SHA256SUMS.sig"} <= {*done.stdout.split()}
    (digest,) = re.findall(r"image\.digest of the chart: (sha256:[0-9a-f]{64})\n", f"{done.stdout}\n")
    values = yaml.safe_load((output / f"ascend-affinity-{version()}-image.values.yaml").read_text())
    assert values == {"image": {"repository": "registry.example/ascend-affinity", "digest": digest}}
    return output


def version() -> str:
    chart = yaml.safe_load((helm.CHART / "Chart.yaml").read_text())
    return str(chart["version"])


def verify(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return command(sys.executable, "-m", "deploy.release", "verify", str(folder), *options)


def statement(folder: Path) -> dict[str, Any]:
    (path,) = folder.glob("*.intoto*")
    document = json.loads(path.read_text())
    if "payload" in document:
        document = json.loads(base64.b64decode(document["payload"]))
    return dict(document)


def test_a_release_is_wheels_chart_image_bills_licences_checksums_and_provenance(made: Path) -> None:
    name = f"ascend-affinity-{version()}"
    images = [f"{name}-image-{part}" for part in ("amd64", "arm64")]
    wheels = [f"{project}-{version()}-py3-none-any.whl" for project in ("ascend_affinity", "ascend_affinity_sandbox")]
    assert {path.name for path in made.iterdir()} == {
        *wheels,
        f"npuctl-{version()}-{MACHINE}.pyz",
        *(f"{image}{suffix}" for image in images for suffix in (".cdx.json", "-notices.txt")),
        *(f"{name}{suffix}" for suffix in (".tgz", "-image.tar", "-image.values.yaml", ".intoto.jsonl")),
        "SHA256SUMS",
        "SHA256SUMS.sig",
    }
    assert not command("sha256sum", "--check", "--strict", "SHA256SUMS", folder=made).returncode


def test_npuctl_is_a_file_that_runs_where_nothing_is_installed(made: Path, tmp_path: Path) -> None:
    (file,) = made.glob("npuctl-*.pyz")
    objects = ("-f", str(REPOSITORY / "deploy" / "examples" / "cluster.yaml"), "--now", "2026-01-01T00:05:00Z")

    def run(*words: str) -> subprocess.CompletedProcess[str]:
        interpreter = (sys._base_executable, "-I", "-S")  # type: ignore[attr-defined]  # not this environment's
        return command(*interpreter, str(file), *words, folder=tmp_path, HOME=str(tmp_path))

    assert run("--version").stdout == f"npuctl {version()}\n"
    assert "topo" in run("--help").stdout
    shown = run("topo", *objects)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "[0-3 train-a]" in shown.stdout
    refused = run("doctor")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert re.fullmatch(r"npuctl doctor without --cluster needs .*\[programs\]\n", refused.stderr)


def test_openssl_verifies_checksums_and_provenance(made: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    against = ("openssl", "dgst", "-sha256", "-verify", str(keys[1]), "-signature")
    assert "OK" in command(*against, "SHA256SUMS.sig", "SHA256SUMS", folder=made).stdout
    (path,) = made.glob("*.intoto.jsonl")
    envelope = json.loads(path.read_text())
    payload, kind = base64.b64decode(envelope["payload"]), envelope["payloadType"].encode()
    assert kind == b"application/vnd.in-toto+json"
    # What DSSE signs (https://github.com/secure-systems-lab/dsse/blob/master/protocol.md).
    (tmp_path / "signed").write_bytes(b"DSSEv1 %d %s %d %s" % (len(kind), kind, len(payload), payload))
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    assert "OK" in command(*against, str(tmp_path / "signature"), str(tmp_path / "signed")).stdout


def test_a_changed_byte_of_any_file_is_found(made: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    assert "signed by the key" in checking.check(made, keys[1])
    for path in sorted(made.iterdir()):
        copy = shutil.copytree(made, tmp_path / "copy")
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        (copy / path.name).write_bytes(content)
        with pytest.raises(ReleaseError, match=r"changed|signature|signed|missing|not listed"):
            checking.check(copy, keys[1])
        shutil.rmtree(copy)


def test_checksums_written_anew_after_a_change_do_not_help(made: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(made, tmp_path / "copy")
    chart = copy / f"ascend-affinity-{version()}.tgz"
    chart.write_bytes(b"another chart")
    names = sorted(path.name for path in copy.iterdir() if not path.name.startswith("SHA256SUMS"))
    sums = "".join(f"{hashlib.sha256((copy / name).read_bytes()).hexdigest()}  {name}\n" for name in names)
    (copy / "SHA256SUMS").write_text(sums)
    done = verify(copy, "--key", str(keys[1]))
    assert done.returncode
    assert "SHA256SUMS: the signature is not this key's" in done.stderr


def test_files_that_are_missing_or_added_are_named(made: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    copy = shutil.copytree(made, tmp_path / "copy")
    (copy / f"ascend-affinity-{version()}.tgz").rename(copy / "another.tgz")
    with pytest.raises(ReleaseError, match=r"missing: \['ascend-affinity-.*tgz'\]; not listed: \['another.tgz'\]"):
        checking.check(copy, keys[1])


@pytest.mark.long
def test_another_key_and_no_key_are_refused(made: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    for number, curve in enumerate(("P-256", "P-384")):
        private, public = tmp_path / f"{number}.key", tmp_path / f"{number}.pub"
        generate = ("genpkey", "-algorithm", "EC", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-out", str(private))
        assert not command("openssl", *generate).returncode
        assert not command("openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)).returncode
        with pytest.raises(ReleaseError, match=r"not this key's|no ECDSA key on the curve P-256"):
            checking.check(made, public)
    with pytest.raises(ReleaseError, match="no public key"):
        checking.check(made, keys[0])
    assert "--key KEY" in verify(made).stderr


@pytest.mark.long
def test_a_release_without_a_key_says_that_it_is_not_signed(
    source: Path, builder: Path, keys: tuple[Path, Path], made: Path, tmp_path: Path
) -> None:
    done = make(source, tmp_path / "dist", builder, PLATFORMS="linux/amd64")
    assert not done.returncode, done.stderr
    assert "NOT SIGNED" in done.stdout
    assert "NOT BUILT: the image for linux/arm64" in done.stdout
    assert "does not name its builder" in done.stdout
    assert [*(tmp_path / "dist").glob("*.intoto.UNSIGNED.json")]
    refused = verify(tmp_path / "dist", "--key", str(keys[1]))
    assert refused.returncode
    assert "IS NOT SIGNED" in refused.stderr
    assert "WHO WROTE IT WAS NOT VERIFIED" in verify(tmp_path / "dist", "--unsigned").stdout
    # Made again of the same commit, in another folder and at another time: the same, byte for byte.
    files = [*made.glob("*.whl"), *made.glob("*.pyz")]
    for name in [*(path.name for path in files), f"ascend-affinity-{version()}.tgz"]:
        assert (made / name).read_bytes() == (tmp_path / "dist" / name).read_bytes(), name


def test_the_provenance_names_commit_bases_and_the_locked_wheels(made: Path, source: Path) -> None:
    found = statement(made)
    assert found["predicateType"] == "https://slsa.dev/provenance/v1"
    materials = found["predicate"]["buildDefinition"]["resolvedDependencies"]
    revision = command("git", "rev-parse", "HEAD", folder=source).stdout.strip()
    assert materials[0]["digest"] == {"gitCommit": revision}
    assert {"uri": "oci://registry.example/python", "digest": {"sha256": 64 * "1"}} in materials
    wheels = {material["name"] for material in materials if "name" in material}
    assert {name.split("-")[0] for name in wheels} >= {"grpcio", "msgspec", "aiohttp", "uvloop", "rich", "multidict"}
    assert not {name.split("-")[0] for name in wheels} & {"pytest", "mypy", "hypothesis", "hatchling"}
    grpc = sorted(name for name in wheels if name.startswith("grpcio-1"))
    assert [re.findall(r"cp313-cp313-.*(x86_64|aarch64)\.whl", name) for name in grpc] == [["aarch64"], ["x86_64"]]
    assert found["predicate"]["runDetails"] == {"builder": {"id": "https://example.org/builder"}}
    files = {path.name for path in made.iterdir()} - {"SHA256SUMS", "SHA256SUMS.sig"}
    subjects = {subject["name"] for subject in found["subject"]}
    (envelope,) = (name for name in files if ".intoto" in name)
    assert subjects == files - {envelope} | {"registry.example/ascend-affinity"}


def test_the_archive_has_an_image_for_both_platforms(made: Path) -> None:
    with tarfile.open(made / f"ascend-affinity-{version()}-image.tar") as joined:
        files = {member.name: joined.extractfile(member) for member in joined.getmembers()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    blobs = {name.removeprefix("blobs/sha256/"): blob for name, blob in content.items() if name.startswith("blobs/")}
    assert all(hashlib.sha256(blob).hexdigest() == name for name, blob in blobs.items())
    read = {f"sha256:{name}": json.loads(blob) for name, blob in blobs.items() if blob.startswith(b"{")}
    (top,) = json.loads(content["index.json"])["manifests"]
    for item, architecture in zip(read[top["digest"]]["manifests"], ("amd64", "arm64"), strict=True):
        assert item["platform"] == {"os": "linux", "architecture": architecture}
        manifest = read[item["digest"]]
        assert read[manifest["config"]["digest"]]["architecture"] == architecture
        assert {layer["digest"].removeprefix("sha256:") for layer in manifest["layers"]} <= set(blobs)


def test_the_bill_of_materials_has_the_base_too(made: Path) -> None:
    document = json.loads((made / f"ascend-affinity-{version()}-image-amd64.cdx.json").read_text())
    Bom.from_json(document)  # type: ignore[attr-defined] # added by a decorator
    bill = {component["name"]: component.get("purl", "") for component in document["components"]}
    assert set(bill) == {"msgspec", "libc6", "python"}
    assert bill["libc6"] == "pkg:deb/debian/libc6@2.41-12%2Bdeb13u1?arch=amd64&distro=debian-13"
    assert bill["python"] == "pkg:generic/python@3.13.9"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"BASE": "registry.example/python:3.13"}, "no base for linux/amd64.*3.13 has none.*PLATFORMS=linux/arm64"),
        ({"BASE": "", "BASE_AMD64": BASE}, "no base for linux/arm64.*BASE_ARM64"),
        ({"PLATFORMS": "linux/s390x"}, "PLATFORMS has linux/s390x"),
        ({"RELEASE_REPOSITORY": "ascend-affinity"}, "does not begin with the name of a registry"),
        ({"RELEASE_BUILDER": "me"}, "RELEASE_BUILDER=me is no URI"),
        ({"RELEASE_KEY": "no-such-file"}, "RELEASE_KEY=no-such-file is no file"),
        ({"RELEASE_KEY": "README.md"}, "RELEASE_KEY=.*README.md"),
        ({"HELM": "no-such-helm"}, "no-such-helm is not installed"),
        ({"UV": "no-such-uv"}, "no-such-uv is not installed"),
        ({"NPUCTL_PLATFORMS": "windows"}, "NPUCTL_PLATFORMS has windows: known are linux-amd64 and"),
        ({"BUILDER": "no-such-builder"}, "no-such-builder is not installed"),
        pytest.param({"BUILDER": "false"}, "build.sh.* failed", marks=pytest.mark.long),
    ],
)
@pytest.mark.usefixtures("built_helm")
def test_what_is_missing_is_said_and_nothing_is_left(
    source: Path, builder: Path, tmp_path: Path, variables: dict[str, str], said: str
) -> None:
    done = make(source, tmp_path / "dist", builder, **variables)
    assert done.returncode == 1
    assert re.search(said, done.stderr), done.stderr
    assert "Traceback" not in done.stderr
    assert not [*tmp_path.iterdir()]


def test_changes_that_are_not_committed_are_refused(source: Path, builder: Path, tmp_path: Path) -> None:
    clone = tmp_path / "clone"
    assert not command("git", "clone", "-q", str(source), str(clone)).returncode
    (clone / "ascend" / "errors.py").write_text("")
    done = make(clone, tmp_path / "dist", builder)
    assert done.returncode == 1
    assert " M ascend/errors.py" in done.stderr


@pytest.mark.real
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_release_of_both_platforms_with_buildah(
    source: Path, keys: tuple[Path, Path], built_helm: None, built_image: image.Image, tmp_path: Path
) -> None:
    assert (built_helm, built_image.commit) == (None, "")
    with image.locked():
        variables = {"HELM": str(helm.path()), "RELEASE_KEY": str(keys[0]), **image.release_variables()}
        build = (sys.executable, "-m", "deploy.release", "build", "--output", str(tmp_path / "dist"))
        done = command(*build, folder=source, **variables)
    assert not done.returncode, done.stderr
    assert "NOT BUILT" not in done.stdout
    checking.check(tmp_path / "dist", keys[1])
    for architecture in ("amd64", "arm64"):
        path = tmp_path / "dist" / f"ascend-affinity-{version()}-image-{architecture}.cdx.json"
        urls = {component["purl"].split("@")[0] for component in json.loads(path.read_text())["components"]}
        assert urls >= {"pkg:pypi/grpcio", "pkg:deb/debian/libc6", "pkg:deb/debian/python3.13-minimal"}
        assert "Apache License" in path.with_name(path.name.replace(".cdx.json", "-notices.txt")).read_text()

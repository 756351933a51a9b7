"""The identity of a pod: its service account."""

import json
import os
from pathlib import Path

import pytest

from ascend.errors import InvalidValue, Unauthorized
from ascend.kube import identity
from ascend.kube.client import KubeClient
from ascend.kube.identity import load_access
from ascend.kube.objects import PODS
from tests.cluster.cluster import Cluster
from tests.cluster.fixtures import cluster  # noqa: F401 - a fixture

ACCOUNT = "reader"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a service account, in a pod without other credentials."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    for name, value in (("HOST", "fd00::1"), ("PORT", "443")):
        monkeypatch.setenv(f"KUBERNETES_SERVICE_{name}", value)
    monkeypatch.setattr(identity, "SERVICE_ACCOUNT", tmp_path)
    (tmp_path / "token").write_text("first\n")
    return tmp_path


@pytest.fixture
def authority(folder: Path) -> Path:
    """The directory with a certificate of an authority; any certificate will do."""
    (folder / "ca.crt").write_text(_any_authority())
    return folder


def _any_authority() -> str:
    import certifi

    text = Path(certifi.where()).read_text()
    begin = text.index("-----BEGIN")
    return text[begin : text.index("-----END") + len("-----END CERTIFICATE-----")] + "\n"


async def test_a_renewed_token_is_used_after_a_minute(authority: Path) -> None:
    now_s = 1000.0
    access = await load_access(monotonic=lambda: now_s)
    assert access.url == "https://[fd00::1]:443"
    (authority / "token").write_text("second")
    now_s += identity.TOKEN_S - 1
    assert await access.headers() == {"Authorization": "Bearer first"}
    now_s += 1
    assert await access.headers() == {"Authorization": "Bearer second"}


async def test_a_context_cluster_or_user_is_never_that_of_the_service_account(
    authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "KUBECONFIG", str(authority / "config"))
    for load in (load_access(context="prod"), load_access(cluster="prod"), load_access(user="ann")):
        with pytest.raises(InvalidValue, match=rf"{authority}/config does not exist, and the service account in"):
            await load
    other = {
        "users": [{"name": "ann", "user": {"token": "hers"}}],
        "clusters": [{"name": "prod", "cluster": {"server": "http://prod"}}],
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "ann"}}],
    }
    (authority / "config").write_text(json.dumps(other))
    assert (await load_access(context="prod")).url == "http://prod"
    assert (await load_access()).url == "https://[fd00::1]:443"


@pytest.mark.parametrize(
    ("server", "proxy", "authorities"),
    [
        ("http://127.0.0.1:8001", None, 0),
        ("http://127.0.0.1:8001", "http://proxy:3128", 0),
        ("http://127.0.0.1:8001", "https://proxy:3128", 1),
        ("https://127.0.0.1:6443", None, 1),
    ],
)
async def test_the_systems_authorities_are_read_only_for_connections_with_tls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, proxy: str | None, authorities: int
) -> None:
    (tmp_path / "authorities.pem").write_text(_any_authority())
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authorities.pem"))
    target = {"server": server} | ({} if proxy is None else {"proxy-url": proxy})
    config = {
        "current-context": "only",
        "contexts": [{"name": "only", "context": {"cluster": "one", "user": "nobody"}}],
        "clusters": [{"name": "one", "cluster": target}],
        "users": [{"name": "nobody", "user": {}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    access = await load_access(str(tmp_path / "config"))
    assert (access.url, access.proxy) == (server, proxy)
    assert access.tls.cert_store_stats()["x509"] == authorities


async def test_an_unreadable_token_is_not_replaced(authority: Path) -> None:
    now_s = 1000.0
    access = await load_access(monotonic=lambda: now_s)
    (authority / "token").unlink()
    now_s += identity.TOKEN_S
    assert await access.headers() == {"Authorization": "Bearer first"}


async def test_an_incomplete_service_account_is_an_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match=r"No such file"):
        await load_access()
    (folder / "ca.crt").write_text("no certificate")
    with pytest.raises(InvalidValue, match=str(folder)):
        await load_access()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    with pytest.raises(InvalidValue, match="KUBERNETES_SERVICE_HOST"):
        await load_access()


@pytest.mark.real
async def test_a_pod_reaches_the_api_server_with_its_service_account(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    cluster: Cluster,  # noqa: F811 - a fixture
) -> None:
    metadata = {"name": ACCOUNT, "namespace": "default"}
    cluster.api.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata})
    (folder / "token").write_text(cluster.service_account_token(ACCOUNT, namespace="default"))
    (folder / "ca.crt").write_bytes(cluster.ca.read_bytes())
    host, _, port = cluster.url.removeprefix("https://").rpartition(":")
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setitem(os.environ, "KUBERNETES_SERVICE_PORT", port)
    async with await KubeClient.connect() as client:
        assert not await client.may("create", PODS.plural)
    (folder / "token").write_text("invalid")
    async with await KubeClient.connect() as client:
        with pytest.raises(Unauthorized):
            await client.list_objects(PODS)

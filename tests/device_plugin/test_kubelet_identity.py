"""No token goes to a listener that has not proved to be the kubelet."""

import shutil
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from aiohttp import web

from ascend.errors import InvalidValue, Unreachable
from device_plugin.kubelet import identity
from device_plugin.kubelet.identity import KubeletIdentity, Unverified
from device_plugin.kubelet.pods_api import KubeletPods
from device_plugin.settings import Settings
from tests.allocator.authority import Authority, Pair

TOKEN = {"Authorization": "Bearer ours"}
HERE = "IP:127.0.0.1"


async def identified() -> Mapping[str, str]:
    return TOKEN


@dataclass
class Listener:
    """Who listens at the kubelet's port.

    Attributes:
        url: of the list of pods.
        context: its certificate can be replaced.
        requests: the headers of each request.
    """

    url: str
    context: ssl.SSLContext | None
    requests: list[Mapping[str, str]] = field(default_factory=list)

    @property
    def tokens(self) -> list[str | None]:
        return [each.get("Authorization") for each in self.requests]


@asynccontextmanager
async def listening(pair: Pair | None) -> AsyncIterator[Listener]:
    context = None
    if pair is not None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pair.cert, pair.key)
    listener = Listener("", context)

    async def pods(request: web.Request) -> web.Response:
        listener.requests.append(request.headers)
        if listener.url.endswith("/moved"):
            return web.Response(status=302, headers={"Location": listener.url.replace("/moved", "/pods")})
        return web.json_response({"items": []}, headers={"Connection": "close"})

    app = web.Application()
    app.router.add_get("/{path:.*}", pods)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
        scheme = "http" if pair is None else "https"
        listener.url = f"{scheme}://127.0.0.1:{runner.addresses[0][1]}/pods"
        yield listener
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(listener: Listener, known: KubeletIdentity) -> AsyncIterator[KubeletPods]:
    async with KubeletPods(lambda: listener.url, identified, known) as pods:
        yield pods


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def cluster_ca(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The CA of the cluster, where a ServiceAccount finds it; there is none yet."""
    path = tmp_path / "ca.crt"
    monkeypatch.setattr(identity, "CLUSTER_CA", path)
    return path


@pytest.fixture
def pki(tmp_path: Path) -> Path:
    folder = tmp_path / "pki"
    folder.mkdir()
    return folder


def keeps(pki: Path, pair: Pair, name: str = "kubelet.crt") -> None:
    """Put a certificate where the kubelet does; a rotated one has its key in the same file, before the chain."""
    key = pair.key.read_text() if name.endswith(".pem") else ""
    (pki / name).write_text(f"{pair.cert.read_text()}{key}")


@pytest.mark.usefixtures("cluster_ca")
@pytest.mark.parametrize("name", identity.FILES)
async def test_the_kubelets_own_certificate_is_enough_whoever_signed_it(
    authority: Authority, pki: Path, name: str
) -> None:
    served = authority.sign("n1", "DNS:somewhere-else")
    keeps(pki, served, name)
    async with listening(served) as listener, asking(listener, KubeletIdentity(pki)) as pods:
        assert await pods.list() == []
        assert listener.tokens == ["Bearer ours"]
        assert pods.problem is None


@pytest.mark.usefixtures("cluster_ca")
async def test_a_stranger_at_the_kubelets_port_gets_no_request(authority: Authority, pki: Path) -> None:
    keeps(pki, authority.sign("n1", HERE))
    async with listening(authority.sign("stranger", HERE)) as listener, asking(listener, KubeletIdentity(pki)) as pods:
        for ask in (pods.list, lambda: pods.registrations("huawei.com/Ascend910")):
            with pytest.raises(Unverified, match=r"no token is sent to https://127\.0\.0\.1"):
                await ask()
        assert not listener.requests
        assert pods.problem is not None


@pytest.mark.usefixtures("cluster_ca")
async def test_a_renewed_certificate_is_read_without_a_restart(authority: Authority, pki: Path) -> None:
    old, new = authority.sign("old", HERE), authority.sign("new", HERE)
    keeps(pki, old, identity.FILES[0])
    async with listening(old) as listener, asking(listener, KubeletIdentity(pki)) as pods:
        await pods.list()
        assert listener.context is not None
        listener.context.load_cert_chain(new.cert, new.key)
        with pytest.raises(Unverified):
            await pods.list()
        keeps(pki, new, identity.FILES[0])
        assert await pods.list() == []
        assert pods.problem is None
        assert listener.tokens == ["Bearer ours"] * 2


async def test_without_a_certificate_the_clusters_authority_counts_for_the_address(
    authority: Authority, pki: Path, cluster_ca: Path
) -> None:
    shutil.copy(authority.cert, cluster_ca)
    for served, is_kubelet in ((authority.sign("k3s", HERE), True), (authority.sign("other", "IP:10.0.0.9"), False)):
        async with listening(served) as listener, asking(listener, KubeletIdentity(pki)) as pods:
            if is_kubelet:
                assert await pods.list() == []
            else:
                with pytest.raises(Unverified):
                    await pods.list()
            assert listener.tokens == ["Bearer ours"] * is_kubelet


@pytest.mark.usefixtures("cluster_ca")
@pytest.mark.parametrize("content", [None, "", "-----BEGIN CERTIFICATE-----\nAAA\n-----END CERTIFICATE-----", "x" * 99])
async def test_without_anything_to_verify_by_nothing_is_sent(
    authority: Authority, pki: Path, content: str | None
) -> None:
    if content is not None:
        (pki / "kubelet.crt").write_text(content)
    async with listening(authority.sign("n1", HERE)) as listener, asking(listener, KubeletIdentity(pki)) as pods:
        with pytest.raises(Unverified):
            await pods.list()
        assert not listener.requests
        # The kubelet may make its certificate later.
        keeps(pki, authority.sign("n1", HERE))
        assert await pods.list() == []


async def test_a_given_authority_replaces_the_kubelets_certificate(
    authority: Authority, pki: Path, tmp_path: Path
) -> None:
    served, other = authority.sign("n1", HERE), Authority(tmp_path, "other-authority")
    keeps(pki, served)
    async with listening(served) as listener:
        for file, is_kubelet in ((authority.cert, True), (other.cert, False), (tmp_path / "missing", False)):
            async with asking(listener, KubeletIdentity(pki, str(file))) as pods:
                if is_kubelet:
                    await pods.list()
                else:
                    with pytest.raises(Unverified):
                        await pods.list()
        assert listener.tokens == ["Bearer ours"]


@pytest.mark.usefixtures("cluster_ca")
async def test_without_tls_the_token_is_left_out(pki: Path) -> None:
    async with listening(None) as listener, asking(listener, KubeletIdentity(pki)) as pods:
        assert await pods.list() == []
        assert listener.tokens == [None]


@pytest.mark.usefixtures("cluster_ca")
async def test_a_redirect_is_not_followed(authority: Authority, pki: Path) -> None:
    served = authority.sign("n1", HERE)
    keeps(pki, served)
    async with listening(served) as listener, asking(listener, KubeletIdentity(pki)) as pods:
        listener.url = listener.url.replace("/pods", "/moved")
        with pytest.raises(Unreachable, match="answered 302"):
            await pods.list()
        assert len(listener.requests) == 1


@pytest.mark.usefixtures("cluster_ca")
async def test_only_the_unsafe_setting_sends_it_to_anybody(authority: Authority, pki: Path) -> None:
    async with (
        listening(authority.sign("stranger", HERE)) as listener,
        asking(listener, KubeletIdentity(pki, insecure=True)) as pods,
    ):
        assert await pods.list() == []
        assert listener.tokens == ["Bearer ours"]


def test_an_authority_beside_the_unsafe_setting_is_refused() -> None:
    with pytest.raises(InvalidValue, match="kubelet_ca_file: has no effect with kubelet_insecure_skip_tls_verify"):
        Settings(node_name="n1", driver="simulated", kubelet_ca_file="ca", kubelet_insecure_skip_tls_verify=True)

"""Where the API server is, and who we are to it: the pod's service account, or a kubeconfig (exec plugins included).

Kubeconfigs are read by the official client library. A service account is three files in a folder, and is read here:
the library takes 10 MiB of memory and a tenth of a second, and in a pod, on every node of a cluster, that is for
nothing.
"""

import contextlib
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from yaml import YAMLError

from ascend.addresses import join_address
from ascend.errors import InvalidValue

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts it."""

TOKEN_S: Final = 60.0
"""How long a token is used before its file is read again: the kubelet renews it long before it ends."""

Headers = Callable[[], Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach the API server, and as whom.

    Attributes:
        url: its address.
        tls: verifies it, and carries our certificate if we have one.
        headers: gives the headers that say who we are, as of now; empty where there are none.
        proxy: the address of the proxy on the way, if any.
        server_name: the name its certificate has, where that is not the one in the address.
    """

    url: str
    tls: ssl.SSLContext
    headers: Headers
    proxy: str | None = None
    server_name: str | None = None


async def load_access(
    kubeconfig: str | None = None, context: str | None = None, *, monotonic: Callable[[], float] = time.monotonic
) -> Access:
    """The way to the API server: from ``kubeconfig``, else ``$KUBECONFIG``, else the pod, else ``~/.kube/config``.

    Args:
        kubeconfig: path of a kubeconfig file.
        context: the context to use; the file's current one if not given.
        monotonic: the clock.

    Raises:
        InvalidValue: none of the sources is usable; says which was tried and why it failed.
    """
    path = kubeconfig or os.environ.get("KUBECONFIG")
    if path is None and (SERVICE_ACCOUNT / "token").exists():
        return _service_account(SERVICE_ACCOUNT, monotonic)
    return await _kubeconfig(path, context)


def _service_account(folder: Path, monotonic: Callable[[], float]) -> Access:
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        tls = ssl.create_default_context(cafile=folder / "ca.crt")
        token = _Token(folder / "token", monotonic)
    except KeyError as error:
        raise InvalidValue(f"no usable access to the API server from {folder}: {error} is not set") from error
    except (OSError, ValueError) as error:
        raise InvalidValue(f"no usable access to the API server from {folder}: {error}") from error
    url = f"https://{join_address(host, port)}"
    return Access(url, tls, token.headers, _environment_proxy(urlsplit(url)))


class _Token:
    """A token that is renewed in its file.

    Args:
        path: the file.
        monotonic: the clock.

    Raises:
        OSError: it can't be read.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._read_s = monotonic()
        self._text = path.read_text().strip()

    async def headers(self) -> Mapping[str, str]:
        """The token as a header; one that can't be read again is used on."""
        now_s = self._monotonic()
        if now_s - self._read_s >= TOKEN_S:
            self._read_s = now_s
            with contextlib.suppress(OSError):  # the server says when it takes the old one no longer
                self._text = self._path.read_text().strip() or self._text
        return {"Authorization": f"Bearer {self._text}"}


async def _kubeconfig(path: str | None, context: str | None) -> Access:
    from kubernetes.aio import client, config

    loaded = client.Configuration()
    try:
        await config.load_kube_config(
            config_file=path, context=context, client_configuration=loaded, persist_config=False
        )
        tls = _tls(loaded)
    except (config.ConfigException, OSError, YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        # A half-written file provokes any of these in the library.
        raise InvalidValue(f"no usable access to the API server from {path or '~/.kube/config'}: {error}") from error

    async def headers() -> Mapping[str, str]:
        settings = cast("dict[str, dict[str, str]]", await loaded.auth_settings())
        return {each["key"]: each["value"] for each in settings.values()}

    url = str(loaded.host)
    proxy = loaded.proxy or _environment_proxy(urlsplit(url))
    return Access(url, tls, headers, proxy, loaded.tls_server_name)


def _tls(loaded: "Configuration") -> ssl.SSLContext:
    tls = ssl.create_default_context(cafile=loaded.ssl_ca_cert, cadata=loaded.ca_cert_data)
    if loaded.cert_file:
        tls.load_cert_chain(loaded.cert_file, keyfile=loaded.key_file)
    if not loaded.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _environment_proxy(server: SplitResult) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY (or the like) name for a server, if any."""
    if proxy_bypass(server.hostname or ""):
        return None
    return getproxies().get(server.scheme)

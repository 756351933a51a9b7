"""Access to the API server: its address and our credentials, from a service account or a kubeconfig.

Kubeconfigs, including exec plugins, are read by the official client library. A service account is three files in a
folder, and is read here: the library would take 10 MiB of memory and a tenth of a second, on every node of a cluster.
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
"""The folder where the kubelet mounts the service account."""

TOKEN_S: Final = 60.0
"""How long a token is used before its file is read again; the kubelet renews it long before it expires."""

Headers = Callable[[], Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials for the API server.

    Attributes:
        url: its address.
        tls: verifies its certificate, and has our client certificate if there is one.
        headers: returns the current headers for authentication; empty if there are none.
        proxy: the address of the proxy to use, if any.
        server_name: the name in its certificate, if it differs from the address.
    """

    url: str
    tls: ssl.SSLContext
    headers: Headers
    proxy: str | None = None
    server_name: str | None = None


async def load_access(
    kubeconfig: str | None = None, context: str | None = None, *, monotonic: Callable[[], float] = time.monotonic
) -> Access:
    """Load the access: from ``kubeconfig``, else ``$KUBECONFIG``, else the pod, else ``~/.kube/config``.

    Args:
        kubeconfig: path of a kubeconfig file.
        context: the context to use; the file's current context by default.
        monotonic: the clock.

    Raises:
        InvalidValue: no source is usable; the message says which one was tried and why it failed.
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
    """A bearer token that is renewed in its file.

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
        """The token as a header; if the file can't be read again, the last token is used."""
        now_s = self._monotonic()
        if now_s - self._read_s >= TOKEN_S:
            self._read_s = now_s
            with contextlib.suppress(OSError):  # the server answers 401 once the old token has expired
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
        # The library raises any of these for a half-written file.
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
    """The proxy for a server according to HTTPS_PROXY, NO_PROXY and the like, if any."""
    if proxy_bypass(server.hostname or ""):
        return None
    return getproxies().get(server.scheme)

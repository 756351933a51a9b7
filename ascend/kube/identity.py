"""The API server's address and our credentials: the pod's service account, or a kubeconfig (exec plugins included).

Kubeconfigs are read by the official client library. A service account is three files in a folder, and is read here:
the library would take 10 MiB of memory and a tenth of a second in a pod on every node.
"""

import contextlib
import os
import ssl
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from ascend.addresses import join_address
from ascend.errors import InvalidValue

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet mounts the service account."""

KUBECONFIG: Final = "~/.kube/config"
"""kubectl's default."""

TOKEN_S: Final = 60.0
"""Seconds after which the token's file is read again. The kubelet renews a token long before it expires."""

_MADE_CONTEXT: Final = "\0"
"""The name of a context that no kubeconfig has."""

Headers = Callable[[], Awaitable[Mapping[str, str]]]


@dataclass(frozen=True, slots=True)
class Access:
    """The API server's address and our credentials.

    Attributes:
        url: the API server's address.
        tls: verifies the API server, and has our client certificate if there is one.
        headers: returns the current headers with our credentials; empty if there are none.
        proxy: the address of the proxy, if any.
        server_name: the name in the API server's certificate, if it is not the one in the address.
    """

    url: str
    tls: ssl.SSLContext
    headers: Headers
    proxy: str | None = None
    server_name: str | None = None


async def load_access(
    kubeconfig: str | None = None,
    context: str | None = None,
    *,
    cluster: str | None = None,
    user: str | None = None,
    monotonic: Callable[[], float] = time.monotonic,
) -> Access:
    """Read ``kubeconfig``, else ``$KUBECONFIG``, else the pod's service account, else ``~/.kube/config``.

    A context, cluster or user is one of a kubeconfig: if any is given, the service account is not used.

    Args:
        kubeconfig: the path of a kubeconfig, or several as in ``$KUBECONFIG``.
        context: the context to use; the current one if not given.
        cluster: the kubeconfig's cluster instead of the context's.
        user: the kubeconfig's user instead of the context's.
        monotonic: the clock.

    Raises:
        InvalidValue: no source is usable; the message says which one was tried and why it failed.
    """
    if _chosen(kubeconfig) is None and _has_service_account() and not (context or cluster or user):
        return _service_account(SERVICE_ACCOUNT, monotonic)
    return await _kubeconfig(kubeconfig, context, cluster, user)


def trusting(cafile: str | PathLike[str] | None = None, cadata: str | bytes | None = None) -> ssl.SSLContext:
    """Return a context for connections to servers whose certificates an authority of the cluster has signed.

    From Python 3.13 on, authorities without the extension *key usage*, and certificates without *authority key
    identifier*, are refused by default. Authorities made with a plain `openssl req -x509` have none; kubectl and
    kubelets accept them, and a cluster must not be lost by an upgrade of this program's Python. Signature, validity
    and name are verified as ever.

    Args:
        cafile: the authority in PEM; the system's authorities if neither is given.
        cadata: the same as text or DER.

    Raises:
        OSError: the file can't be read, or has no certificate.
        ValueError: the text is no certificate.
    """
    context = ssl.create_default_context(cafile=cafile, cadata=cadata)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    return context


def kubeconfig_paths(kubeconfig: str | None = None) -> str:
    """Return the path of the kubeconfig, or several as in ``$KUBECONFIG``, whether they exist or not."""
    return _chosen(kubeconfig) or KUBECONFIG


def _chosen(kubeconfig: str | None) -> str | None:
    return kubeconfig or os.environ.get("KUBECONFIG") or None


def _has_service_account() -> bool:
    return (SERVICE_ACCOUNT / "token").exists()


def _service_account(folder: Path, monotonic: Callable[[], float]) -> Access:
    try:
        host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
        tls = trusting(cafile=folder / "ca.crt")
        token = _Token(folder / "token", monotonic)
    except KeyError as error:
        raise InvalidValue(f"no usable access to the API server from {folder}: {error} is not set") from error
    except (OSError, ValueError) as error:
        raise InvalidValue(f"no usable access to the API server from {folder}: {error}") from error
    url = f"https://{join_address(host, port)}"
    return Access(url, tls, token.headers, _environment_proxy(urlsplit(url)))


class _Token:
    """A token that the kubelet renews in its file.

    Raises:
        OSError: the file can't be read.
    """

    def __init__(self, path: Path, monotonic: Callable[[], float]) -> None:
        self._path = path
        self._monotonic = monotonic
        self._read_s = monotonic()
        self._text = path.read_text().strip()

    async def headers(self) -> Mapping[str, str]:
        """Return the token as a header; while the file can't be read, the last one read."""
        now_s = self._monotonic()
        if now_s - self._read_s >= TOKEN_S:
            self._read_s = now_s
            with contextlib.suppress(OSError):  # the server reports when the old one has expired
                self._text = self._path.read_text().strip() or self._text
        return {"Authorization": f"Bearer {self._text}"}


async def _kubeconfig(kubeconfig: str | None, context: str | None, cluster: str | None, user: str | None) -> Access:
    import yaml
    from kubernetes.aio import client, config
    from kubernetes.aio.config.kube_config import KubeConfigLoader, KubeConfigMerger

    paths = kubeconfig_paths(kubeconfig)
    # pathlib raises where it can't tell whether a file exists, for example below another user's folder.
    named = (os.path.expanduser(part) for part in paths.split(os.pathsep))  # noqa: PTH111
    files = [Path(path) for path in named if os.path.exists(path)]  # noqa: PTH110
    if not files:
        absent = f"there is no file {paths}"
        if _chosen(kubeconfig) is None:
            absent = (
                f"no kubeconfig was found: neither --kubeconfig nor $KUBECONFIG is set, {paths} does not exist, and "
                + (
                    f"the service account in {SERVICE_ACCOUNT} has no contexts, clusters and users to choose from"
                    if _has_service_account()
                    else f"there is no service account in {SERVICE_ACCOUNT}"
                )
            )
        raise InvalidValue(f"no usable access to the API server: {absent}")
    loaded = client.Configuration()
    try:
        merged = KubeConfigMerger(paths).config
        chosen = _with(merged, context, cluster, user) if cluster or user else context
        await KubeConfigLoader(merged, active_context=chosen, config_base_path=None).load_and_set(loaded)
        url = str(loaded.host)
        proxy = loaded.proxy or _environment_proxy(urlsplit(url))
        tls = _tls(loaded, url, proxy)
    except (config.ConfigException, OSError, yaml.YAMLError, ValueError) as error:
        reason = _not_a_kubeconfig(files) or " ".join(str(error).split())
        raise InvalidValue(f"no usable access to the API server from {paths}: {reason}") from error
    except (TypeError, KeyError, AttributeError) as error:  # the library's, about a file of another shape
        reason = _not_a_kubeconfig(files) or f"a field has the wrong type ({error})"
        raise InvalidValue(f"no usable access to the API server from {paths}: {reason}") from error

    async def headers() -> Mapping[str, str]:
        settings = cast("dict[str, dict[str, str]]", await loaded.auth_settings())
        return {setting["key"]: setting["value"] for setting in settings.values()}

    return Access(url, tls, headers, proxy, loaded.tls_server_name)


def _with(merged: Any, context: str | None, cluster: str | None, user: str | None) -> str:
    """Add a context to a kubeconfig with another cluster or user than the one to use has; returns its name.

    Raises:
        ConfigException: there is no such context, cluster or user.
    """
    own, name = {}, context or merged.safe_get("current-context")
    if name:
        own = merged["contexts"].get_with_name(name)["context"].value
    if user:
        merged["users"].get_with_name(user)  # the library takes an unknown user as none
    given = {"cluster": cluster, "user": user}
    made = {"name": _MADE_CONTEXT, "context": own | {key: text for key, text in given.items() if text}}
    merged.value["contexts"].append(made)
    return _MADE_CONTEXT


def _not_a_kubeconfig(files: Sequence[Path]) -> str | None:
    """Return a sentence on the first file that is not even a YAML mapping; None if all are."""
    import yaml

    for file in files:
        try:
            content = yaml.safe_load(file.read_text())
        except (OSError, ValueError, yaml.YAMLError):
            continue  # the error of the library says more
        if not isinstance(content, dict):
            return f"{file} is not a kubeconfig: it is empty" if content is None else f"{file} is not a kubeconfig"
    return None


def _tls(loaded: "Configuration", url: str, proxy: str | None) -> ssl.SSLContext:
    if not any((address or "").startswith("https:") for address in (url, proxy)):
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # unused: to read the system's authorities takes 50 ms of CPU
    tls = trusting(cafile=loaded.ssl_ca_cert, cadata=loaded.ca_cert_data)
    if loaded.cert_file:
        tls.load_cert_chain(loaded.cert_file, keyfile=loaded.key_file)
    if not loaded.verify_ssl:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    return tls


def _environment_proxy(server: SplitResult) -> str | None:
    """Return the proxy for a server by HTTPS_PROXY, NO_PROXY and the like, if any."""
    if proxy_bypass(server.hostname or ""):
        return None
    return getproxies().get(server.scheme)

"""Who we are to the API server: a kubeconfig (exec plugins included) or the pod's own service account.

The official client library loads both; we only decide which, and load again when the server no longer accepts us.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies, proxy_bypass

from yaml import YAMLError

from ascend.errors import InvalidValue

if TYPE_CHECKING:
    from kubernetes.aio.client import Configuration

SERVICE_ACCOUNT_TOKEN = Path("/var/run/secrets/kubernetes.io/serviceaccount/token")


async def load_configuration(kubeconfig: str | None = None, context: str | None = None) -> "Configuration":
    """The connection settings: from ``kubeconfig``, else ``$KUBECONFIG``, else the pod, else ``~/.kube/config``.

    The pod's token file is read again every minute by the library.

    Args:
        kubeconfig: path of a kubeconfig file.
        context: the context to use; the file's current one if not given.

    Raises:
        InvalidValue: none of the sources is usable; says which was tried and why it failed.
    """
    from kubernetes.aio import client, config

    loaded = client.Configuration()
    path = kubeconfig or os.environ.get("KUBECONFIG")
    try:
        if path is None and SERVICE_ACCOUNT_TOKEN.exists():
            config.load_incluster_config(client_configuration=loaded)
        else:
            await config.load_kube_config(
                config_file=path, context=context, client_configuration=loaded, persist_config=False
            )
    except (config.ConfigException, OSError, YAMLError, TypeError, ValueError, KeyError, AttributeError) as error:
        # A half-written file provokes any of these in the library.
        source = path or "the service account or ~/.kube/config"
        raise InvalidValue(f"no usable access to the API server from {source}: {error}") from error
    # With trust_env aiohttp looks the proxy up anew, in a thread, for every request; once is enough.
    loaded.client_session_kwargs = {"trust_env": False}
    if loaded.proxy is None:
        loaded.proxy = _environment_proxy(urlsplit(loaded.host))
    return loaded


def _environment_proxy(server: SplitResult) -> str | None:
    """The proxy that HTTPS_PROXY and NO_PROXY (or the like) name for a server, if any."""
    if proxy_bypass(server.hostname or ""):
        return None
    return getproxies().get(server.scheme)

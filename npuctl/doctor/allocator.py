"""Asks a running allocator how it is: whether it answers schedulers, and whether its books agree with the cluster."""

import ssl
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ascend.errors import InvalidValue
from npuctl.doctor.finding import Finding

CHECK = "allocator"

_PATIENCE = aiohttp.ClientTimeout(total=8.0)
_DIFFERENCES = "ascend_allocator_state_differences"
_AGE_S = "ascend_allocator_snapshot_age_seconds"
_QUIET_S = 120.0
"""Watches are heard of at least every minute, when nothing happens."""


_REACH = "reach it by kubectl port-forward, and give its address by --allocator: https://… where it serves TLS"
_TRUST = (
    "give the authority of its certificate by --allocator-ca (ca.crt of the Secret that the chart makes), and the "
    "address by a name that the certificate is for"
)


async def inquire(address: str, authority: Path | None = None) -> list[Finding]:
    """Look at an allocator.

    Args:
        address: where it serves probes and metrics, as in ``http://127.0.0.1:8080``; without a scheme it is asked
            by TLS where there is an authority.
        authority: the certificates, as a PEM file, that vouch for it; None for those that the system trusts.

    Raises:
        InvalidValue: the authority can't be read.
    """
    tls = _trusting(authority) if authority is not None else True
    scheme = "" if "://" in address else "http://" if authority is None else "https://"
    base = f"{scheme}{address.rstrip('/')}"
    try:
        connector = aiohttp.TCPConnector(ssl=tls)
        async with aiohttp.ClientSession(timeout=_PATIENCE, connector=connector) as http:
            async with http.get(f"{base}/readyz") as answer:
                ready, waits_for = answer.status == HTTPStatus.OK, (await answer.text()).strip()
            async with http.get(f"{base}/metrics") as answer:
                metrics = await answer.text()
        values = {
            sample.name: sample.value for each in text_string_to_metric_families(metrics) for sample in each.samples
        }
    except aiohttp.ClientConnectorCertificateError as error:
        told = f"the certificate at {base} is not trusted: {error.certificate_error}"
        return [Finding(CHECK, "problem", told, _TRUST)]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        told = f"{base} does not answer as an allocator does: {str(error) or type(error).__name__}"
        return [Finding(CHECK, "problem", told, _REACH)]
    if not ready:
        return [
            Finding(CHECK, "problem", f"{base} is not ready: {waits_for}", "its log says more; one of two only waits")
        ]
    return [Finding(CHECK, "ok", f"{base} is ready"), *_books(values)]


def _trusting(authority: Path) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authority)
    except (OSError, ValueError) as error:
        raise InvalidValue(f"--allocator-ca: {authority} can't be used: {error}") from error


def _books(values: dict[str, float]) -> Iterator[Finding]:
    differences, age_s = values.get(_DIFFERENCES), values.get(_AGE_S)
    if differences:
        told = f"its state differs from the API server's objects in {differences:g} points"
        yield Finding(CHECK, "problem", told, "its log names them; restart it, and report this: it must not happen")
    elif differences is not None:
        yield Finding(CHECK, "ok", "its state is what the API server's objects give")
    if age_s is not None and age_s > _QUIET_S:
        told = f"it has not heard of the API server for {age_s:.0f} s, on one of its watches"
        yield Finding(CHECK, "warning", told, "look at the network between them")

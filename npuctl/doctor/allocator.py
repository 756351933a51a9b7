"""The checks of a running allocator: whether it serves schedulers, and whether its informers reach the API server."""

import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ascend.errors import InvalidValue
from npuctl.doctor.finding import Finding, ok, problem, warning

_TIMEOUT: Final = aiohttp.ClientTimeout(total=8.0)
_AGE_S: Final = "ascend_allocator_snapshot_age_seconds"
_QUIET_S: Final = 120.0
"""Every watch receives at least a bookmark each minute."""

_REACH: Final = "use kubectl port-forward, and give its address by --allocator: https://… if it serves TLS"
_TRUST: Final = (
    "give the authority of its certificate by --allocator-ca (ca.crt of the Secret that the chart makes), and the "
    "address by a name in the certificate"
)


async def check_allocator(address: str, authority: Path | None = None) -> list[Finding]:
    """Check an allocator.

    Args:
        address: where it serves probes and metrics, as in ``http://127.0.0.1:8080``. Without a scheme, it is https if
            an authority is given, else http.
        authority: a PEM file with the authority of its certificate; None for the system's.

    Raises:
        InvalidValue: the authority can't be read.
    """
    try:
        tls = ssl.create_default_context(cafile=authority) if authority is not None else True
    except (OSError, ValueError) as error:
        raise InvalidValue(f"--allocator-ca: {authority} can't be used: {error}") from error
    scheme = "" if "://" in address else "http://" if authority is None else "https://"
    base = f"{scheme}{address.rstrip('/')}"
    try:
        connector = aiohttp.TCPConnector(ssl=tls)
        async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=connector) as http:
            async with http.get(f"{base}/readyz") as answer:
                ready, page = answer.status == HTTPStatus.OK, (await answer.text()).strip()
            async with http.get(f"{base}/metrics") as answer:
                metrics = await answer.text()
        families = text_string_to_metric_families(metrics)
        values = {sample.name: sample.value for each in families for sample in each.samples}
    except aiohttp.ClientConnectorCertificateError as error:
        return [problem(f"the certificate of {base} is not trusted: {error.certificate_error}", _TRUST)]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return [problem(f"{base} does not answer like an allocator: {str(error) or type(error).__name__}", _REACH)]
    if not ready:
        advice = "its log says more; if it is not the leader, check the leader instead"
        return [problem(f"{base} is not ready: {page}", advice)]
    findings = [ok(f"{base} is ready")]
    if (age_s := values.get(_AGE_S, 0.0)) > _QUIET_S:
        sentence = f"one of its watches has received nothing from the API server for {age_s:.0f} s"
        findings.append(warning(sentence, "check the network between them"))
    return findings

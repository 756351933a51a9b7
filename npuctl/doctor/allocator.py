"""The checks of a running allocator: whether it serves schedulers, and whether its informers reach the API server."""

import time
from collections.abc import Iterable
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from ascend.errors import InvalidValue
from ascend.kube.identity import trusting
from npuctl.doctor.finding import Finding, ok, problem, warning

_TIMEOUT: Final = aiohttp.ClientTimeout(total=8.0)
_AGE_S: Final = "ascend_allocator_snapshot_age_seconds"
_QUIET_S: Final = 120.0
"""Every watch receives at least a bookmark each minute."""

_EXPIRY: Final = "ascend_allocator_certificate_expiry_timestamp_seconds"
_RENEWAL: Final = "ascend_allocator_certificate_renewal_timestamp_seconds"
_RENEW: Final = "no scheduler is answered without it: renew it (docs/allocator.md#certificates)"

_REACH: Final = "use kubectl port-forward, and give its address by --allocator: https://… if it serves TLS"
_TRUST: Final = (
    "give the authority of its certificate by --allocator-ca (ca.crt of the Secret that the chart makes), and the "
    "address by a name in the certificate"
)


async def check_allocator(address: str, authority: Path | None = None, *, now_s: float | None = None) -> list[Finding]:
    """Check an allocator.

    Args:
        address: where it serves probes and metrics, as in ``http://127.0.0.1:8080``. Without a scheme, it is https if
            an authority is given, else http.
        authority: a PEM file with the authority of its certificate; None for the system's.
        now_s: the time, Unix seconds; the clock's if not given.

    Raises:
        InvalidValue: the authority can't be read.
    """
    try:
        tls = trusting(cafile=authority) if authority is not None else True
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
        samples = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
        values = {sample.name: sample.value for sample in samples if not sample.labels}
    except aiohttp.ClientConnectorCertificateError as error:
        return [problem(f"the certificate of {base} is not trusted: {error.certificate_error}", _TRUST)]
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
        return [problem(f"{base} does not answer like an allocator: {str(error) or type(error).__name__}", _REACH)]
    findings = _check_certificates(samples, now_s)
    if not ready:
        advice = "its log says more; if it is not the leader, check the leader instead"
        return [problem(f"{base} is not ready: {page}", advice), *findings]
    findings.insert(0, ok(f"{base} is ready"))
    if (age_s := values.get(_AGE_S, 0.0)) > _QUIET_S:
        sentence = f"one of its watches has received nothing from the API server for {age_s:.0f} s"
        findings.append(warning(sentence, "check the network between them"))
    return findings


def _check_certificates(samples: Iterable[Sample], now_s: float | None) -> list[Finding]:
    """Certificates that have expired, or should have been renewed by now."""
    now_s = time.time() if now_s is None else now_s
    times = {
        (sample.name, sample.labels["certificate"]): sample.value
        for sample in samples
        if "certificate" in sample.labels
    }
    findings = []
    for (name, what), ends_s in sorted(times.items()):
        if name != _EXPIRY or now_s < times.get((_RENEWAL, what), ends_s):
            continue
        ends = f"{datetime.fromtimestamp(ends_s, UTC):%Y-%m-%d %H:%M} UTC"
        if now_s >= ends_s:
            findings.append(problem(f"the certificate {what} expired at {ends}", _RENEW))
        else:
            findings.append(warning(f"the certificate {what} expires at {ends}", _RENEW))
    return findings

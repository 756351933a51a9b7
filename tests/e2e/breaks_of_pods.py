"""Breaks of docs/failures.md that pods suffer from: gangs, allocators and their certificates."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

from tests.allocator.authority import ALLOWED, Authority
from tests.cluster.manifests import extender
from tests.e2e.lab import Break, Lab
from tests.e2e.test_gang_barrier import of_gang


@asynccontextmanager
async def a_pod_of_a_gang_can_not_start(lab: Lab) -> AsyncIterator[None]:
    for rank, cpu in enumerate((0, 1000)):
        await lab.world.create(f"gang-{rank}", 8, annotations=of_gang("gang", 2), cpu=cpu)
    yield


@asynccontextmanager
async def the_scheduler_refuses_a_pod_of_a_gang(lab: Lab) -> AsyncIterator[None]:
    ports = [{"containerPort": 18080, "hostPort": 18080}]
    (busy,) = lab.world.pod_manifest("busy", 0)["spec"]["containers"]
    await lab.world.create("busy", 0, containers=[{**busy, "ports": ports}])
    for rank in range(2):
        (container,) = lab.world.pod_manifest(f"gang-{rank}", 8)["spec"]["containers"]
        await lab.world.create(
            f"gang-{rank}", 8, annotations=of_gang("gang", 2), containers=[{**container, "ports": ports}]
        )
    yield


@asynccontextmanager
async def a_pod_of_a_waiting_gang_is_deleted(lab: Lab) -> AsyncIterator[None]:
    await lab.run("works", 8)
    for rank in range(2):
        await lab.world.create(f"gang-{rank}", 8, annotations=of_gang("gang", 2))
    await lab.world.pending_because("gang-0")
    await lab.world.delete("gang-1")
    yield


async def _authority(lab: Lab) -> Authority:
    return await asyncio.to_thread(Authority, lab.world.folder)


async def _flags(authority: Authority) -> list[str]:
    pair = await asyncio.to_thread(authority.sign, "allocator", "IP:127.0.0.1")
    return ["--tls-cert-file", str(pair.cert), "--tls-key-file", str(pair.key)]


@asynccontextmanager
async def a_certificate_is_about_to_expire(lab: Lab) -> AsyncIterator[None]:
    authority = await _authority(lab)
    flags = await _flags(authority)
    await asyncio.to_thread(_age, authority, Path(flags[1]))
    async with lab.allocator_with(*flags, "--leader-election", "true"):
        yield


def _age(authority: Authority, cert: Path) -> None:
    """Sign a certificate anew: nine tenths of its lifetime are over."""
    folder, now = cert.parent, datetime.now(UTC)
    (folder / "index.txt").touch()
    config = folder / "ca.conf"
    config.write_text(
        f"[ca]\ndefault_ca=own\n[own]\ndatabase={folder}/index.txt\nrand_serial=yes\nnew_certs_dir={folder}\n"
        "default_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n"
    )
    begin, end = (f"{now + timedelta(days=days):%Y%m%d%H%M%SZ}" for days in (-90, 10))
    files = ("-cert", authority.cert, "-keyfile", authority.key, "-in", cert.with_suffix(".csr"), "-out", cert)
    more = ("-extfile", cert.with_suffix(".ext"), "-startdate", begin, "-enddate", end)
    subprocess.run(
        ["openssl", "ca", "-batch", "-notext", "-config", config, *files, *more], capture_output=True, check=True
    )


@asynccontextmanager
async def the_scheduler_presents_no_certificate(lab: Lab) -> AsyncIterator[None]:
    authority = await _authority(lab)
    named = ["--client-ca-file", str(authority.cert), "--client-names", f'["{ALLOWED}"]']
    address = lab.world.service.backends[0].replace("http:", "https:")
    async with lab.allocator_with(*await _flags(authority), *named):
        await asyncio.to_thread(lab.cluster.restart_scheduler, f"{address}/scheduler")
        await lab.world.create("waits", 1)
        yield
    await lab.world.restart_scheduler()
    await lab.world.running("waits")


@asynccontextmanager
async def the_leader_is_suspended(lab: Lab) -> AsyncIterator[None]:
    world = lab.world
    extenders = [extender(world.extender_url or "", httpTimeout="8s")]
    await asyncio.to_thread(lab.cluster.restart_scheduler, extenders=extenders)
    leader = await world.pause_leader()
    await world.create("asked", 1)
    yield
    await leader.kill()
    await leader.start()
    await world.restart_scheduler()
    await world.running("asked")


BREAKS: Final[Mapping[str, Break]] = {
    "its leader is suspended": the_leader_is_suspended,
    "a certificate is about to expire": a_certificate_is_about_to_expire,
    "a caller presents no certificate": the_scheduler_presents_no_certificate,
    "a pod that a gang needs can't start": a_pod_of_a_gang_can_not_start,
    "kube-scheduler refuses a pod of a gang": the_scheduler_refuses_a_pod_of_a_gang,
    "a pod of a gang is deleted": a_pod_of_a_waiting_gang_is_deleted,
}

"""Certificates that should have been renewed are announced."""

import time
from pathlib import Path

from allocator.observe.expiry import REASON, REMIND_S, Expiry
from ascend.daemon.validity import Validity, validity_in
from ascend.kube.client import KubeClient
from ascend.kube.events import Regarding
from ascend.kube.objects import LEASES
from npuctl.doctor.allocator import check_allocator
from sandbox.apiserver import ApiServer
from tests.allocator.authority import ALLOWED, Authority, settings_for
from tests.allocator.harness import events_of, running
from tests.allocator.serving.test_tls import call_http

DAY_S = 86_400.0
LEASE = Regarding("Lease", "lease", "system", "uid", LEASES.api_version)


class Scene:
    """An allocator on its 700th day, whose certificates last for two years."""

    def __init__(self) -> None:
        self.validities = {"server": Validity(0.0, 730 * DAY_S), "kube": Validity(0.0, 800 * DAY_S)}
        self.now_s = 700 * DAY_S
        self.leads = True
        self.regarding: Regarding | None = LEASE
        self.posted: list[tuple[Regarding, str, str]] = []
        self.expiry = Expiry(
            lambda: self.validities,
            self._publish,
            lambda: self.leads,
            lambda: self.regarding,
            now_s=lambda: self.now_s,
            monotonic=lambda: self.now_s,
        )

    def _publish(self, regarding: Regarding, reason: str, note: str, *, action: str) -> bool:
        assert action
        self.posted.append((regarding, reason, note))
        return True


def test_a_certificate_is_announced_from_a_month_before_its_end_on_again_and_again() -> None:
    scene = Scene()
    scene.now_s -= 1
    scene.expiry.post()
    assert scene.posted == []
    scene.now_s += REMIND_S
    for _ in range(3):
        scene.expiry.post()
    ((regarding, reason, note),) = scene.posted
    assert (regarding, reason) == (LEASE, REASON)
    assert note.startswith("the certificate of the allocator expires at 1972-01-01 00:00 UTC: renew it")
    scene.now_s += REMIND_S
    scene.expiry.post()
    # The same sentence, so that it is one Event.
    assert [each[2] for each in scene.posted] == [note, note]
    scene.now_s = 790 * DAY_S
    scene.expiry.post()
    assert scene.posted[-2][2].startswith("the certificate that the client kube presents expires at ")
    assert "expired at 1972-01-01 00:00 UTC" in scene.posted[-1][2]


def test_only_the_leader_announces_and_without_a_lease_nobody_posts() -> None:
    scene = Scene()
    scene.leads = False
    scene.expiry.post()
    scene.leads, scene.regarding = True, None
    scene.expiry.post()
    assert scene.posted == []
    scene.now_s += REMIND_S
    scene.regarding = LEASE
    scene.expiry.post()
    assert len(scene.posted) == 1


async def test_event_metric_and_doctor_tell_of_every_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path, days=90)
    client = authority.sign("client", f"URI:{ALLOWED}")
    files = settings_for(tmp_path, authority)
    late_s = time.time() + 80 * DAY_S
    files |= {"leader_election": True, "lease_namespace": "default", "lease_name": "lease"}
    async with (
        ApiServer() as server,
        running(server, tmp_path, **files, now_ns=lambda: int(late_s * 1e9)) as allocator,
    ):
        events = await events_of(allocator)
        assert {event["reason"] for event in events} == {REASON}
        assert {event["regarding"]["kind"] for event in events} == {"Lease"}
        async with await KubeClient.connect(str(tmp_path / "kubeconfig")) as client_of_api:
            lease = await client_of_api.get(LEASES, "lease", "default")
        assert {event["regarding"]["uid"] for event in events} == {lease.uid}
        assert (await call_http(allocator, authority, client))[0] == 200
        _, page = await call_http(allocator, authority, None, "/metrics")
        name = "ascend_allocator_certificate_expiry_timestamp_seconds"
        for what, cert in (("server", files["tls_cert_file"]), ("client_ca", authority.cert), (ALLOWED, client.cert)):
            (line,) = (each for each in page.splitlines() if each.startswith(f'{name}{{certificate="{what}"}}'))
            assert float(line.rpartition(" ")[2]) == validity_in(cert).ends_s
        address = f"https://{allocator.app.probe_address}"
        assert [each.severity for each in await check_allocator(address, authority.cert)] == ["ok"]
        found = await check_allocator(address, authority.cert, now_s=late_s)
        assert [each.severity for each in found] == ["ok", "warning", "warning", "warning"]
        assert any(ALLOWED in each.sentence for each in found)
        found = await check_allocator(address, authority.cert, now_s=late_s + 20 * DAY_S)
        assert [each.severity for each in found] == ["ok", "problem", "problem", "problem"]

from ascend.kube.objects import CONFIG_MAPS
from device_plugin.chips.fault_config import NAME, FaultConfig
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.fault_rules_file import default_rules
from tests.device_plugin.api import RecordingClient, running, until

BODY = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": NAME, "namespace": "kube-system"},
    "data": {"faultCode.json": '{"NotHandleFaultCodes":["ABCDEF01"]}'},
}


async def test_rules_deleted_before_the_watch_starts_no_longer_apply(client: RecordingClient) -> None:
    applied: list[FaultRules] = []
    rules = FaultConfig(applied.append, lambda *_: None)
    await client.create(CONFIG_MAPS, BODY, "kube-system")
    await rules.fetch(client)
    assert applied != [default_rules()]
    await client.delete(CONFIG_MAPS, NAME, "kube-system")
    async with running(rules.follow(client)):
        await until(lambda: applied[-1] == default_rules())
        await client.create(CONFIG_MAPS, BODY, "kube-system")
        await until(lambda: applied[-1] == applied[0])
    assert len(applied) == 3


async def test_rules_unchanged_when_the_watch_starts_are_announced_once(client: RecordingClient) -> None:
    applied: list[FaultRules] = []
    rules = FaultConfig(applied.append, lambda *_: None)
    await client.create(CONFIG_MAPS, BODY, "kube-system")
    await rules.fetch(client)
    async with running(rules.follow(client)):
        await until(lambda: len(client.to("configmaps", "GET")) > 1)
        await client.delete(CONFIG_MAPS, NAME, "kube-system")
        await until(lambda: len(applied) > 1)
    assert applied == [applied[0], default_rules()]

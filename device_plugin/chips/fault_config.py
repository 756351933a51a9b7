"""Watches the site's fault rules: ConfigMap ``kube-system/mindx-dl-fault-config`` (docs/spec/faults.md#fault-rules)."""

import asyncio
from collections.abc import Callable

import structlog

from ascend.deviceinfo import NAMESPACE
from ascend.errors import NotFound
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, ConfigMap
from ascend.kube.reflector import Reflector
from device_plugin.health.fault_rules import FaultRules
from device_plugin.health.fault_rules_file import default_rules, read_rules

log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)

NAME = "mindx-dl-fault-config"


class FaultConfig:
    """Passes on the rules whenever they change; a handler for its own watch.

    Args:
        configure: receives the rules.
        announce: receives a reason, a sentence and whether it is a warning, if entries are refused.
    """

    def __init__(self, configure: Callable[[FaultRules], None], announce: Callable[[str, str, bool], None]) -> None:
        self._configure = configure
        self._announce = announce
        self._version = ""

    async def follow(self, client: KubeClient) -> None:
        """Watch until cancelled."""
        watch = Reflector(client, CONFIG_MAPS, self, namespace=NAMESPACE, field_selector=f"metadata.name={NAME}")
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch.run())
            await watch.synced.wait()
            if self._version and not watch.objects:
                self._use_defaults(f"{NAMESPACE}/{NAME}")  # deleted after it was fetched: no watch event shows that

    async def fetch(self, client: KubeClient) -> None:
        """Pass on the present rules, before any chip is judged; the watch passes on later ones.

        Raises:
            ApiError: the server refuses.
            Unreachable: it does not answer.
        """
        try:
            self.on_apply(await client.get(CONFIG_MAPS, NAME, NAMESPACE))
        except NotFound:
            return

    def on_apply(self, obj: ConfigMap) -> None:
        """Apply the ConfigMap; invalid entries are left out, the others apply."""
        if obj.metadata.resource_version == self._version:
            return
        self._version = obj.metadata.resource_version
        rules, problems = read_rules(obj.data, default_rules())
        for problem in problems:
            log.warning("a fault rule is not used", config_map=obj.key, error=problem)
        if problems:
            self._announce("NPUFaultRulesInvalid", f"ConfigMap {obj.key}: {'; '.join(problems)}", True)  # noqa: FBT003
        log.info("fault rules as configured", config_map=obj.key, version=obj.metadata.resource_version)
        self._configure(rules)

    def on_delete(self, obj: ConfigMap) -> None:
        """Apply the defaults, because the ConfigMap is gone."""
        self._use_defaults(obj.key)

    def _use_defaults(self, config_map: str) -> None:
        log.info("fault rules by default", config_map=config_map)
        self._version = ""
        self._configure(default_rules())

"""Tells the processes of a job, in its ConfigMap ``reset-config-<job>``, what rescheduling does to the job.

See docs/spec/job-files.md#what-resetjson-says.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec
import structlog
from msgspec.structs import replace

from allocator.rescheduling.decision import PodChoice, leaves_gracefully
from allocator.rescheduling.memory import Recovery
from allocator.rules.rescheduling_labels import FaultLabels
from ascend.errors import UNREADABLE, ApiError, InvalidValue, NotFound, Unreachable
from ascend.job_files import RESET, RESET_CONFIG, RESTART_TYPE, job_name
from ascend.kube.client import KubeClient
from ascend.kube.objects import CONFIG_MAPS, Pod

log = structlog.get_logger()

_CHECK_CODE: Final = "checkCode"
_PODS_REPLACED: Final = "podReschedule"


class Reset(msgspec.Struct, frozen=True):
    """What ``reset.json`` says; the order of the fields is that of the wire.

    Attributes:
        RankList: the faulty ranks.
        UpdateTime: when it was changed, Unix seconds.
        RetryTime: processes that still run start again once it grows.
        FaultFlushing: for the processes; kept as it is.
        GracefulExit: 1 while the processes shall save their state and end.
        RestartFaultProcess: for the processes; kept as it is.
    """

    RankList: list[msgspec.Raw] | None = None
    UpdateTime: int = 0
    RetryTime: int = 0
    FaultFlushing: bool = False
    GracefulExit: int = 0
    RestartFaultProcess: bool = False


def read_reset(data: Mapping[str, str]) -> Reset:
    """Read ``reset.json``.

    Raises:
        InvalidValue: it is missing or malformed.
    """
    if RESET not in data:
        raise InvalidValue(f"the key {RESET} is missing")
    try:
        return msgspec.json.decode(data[RESET], type=Reset)
    except UNREADABLE as error:
        raise InvalidValue(f"{RESET}: {error}") from error


def written(reset: Reset) -> dict[str, str]:
    """Return the ConfigMap's keys for a reset, with the hash that MindCluster's writers add."""
    text = msgspec.json.encode(reset)
    return {RESET: text.decode(), _CHECK_CODE: hashlib.sha256(text).hexdigest()}


def whole(reset: Reset, recovery: Recovery, now_s: float) -> dict[str, str]:
    """Return the keys that tell a job's processes of the new places of all pods.

    Args:
        reset: what the processes were told before.
        recovery: what was done about the job.
        now_s: the present, Unix seconds.
    """
    if recovery.is_leaving:
        reset = replace(reset, GracefulExit=0)
    if not recovery.restarts:
        return written(reset)
    retry_time = reset.RetryTime + 1 if recovery.some_stayed else 0
    reset = replace(reset, RankList=[], UpdateTime=int(now_s), RetryTime=retry_time)
    return {**written(reset), RESTART_TYPE: _PODS_REPLACED}


class ResetConfigs:
    """Changes the ConfigMaps of jobs that have one. A failure is logged and delays nothing.

    Args:
        client: the API server.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def tell_deleted(self, choice: PodChoice, switches: FaultLabels) -> None:
        """Tell the processes of a job to save their state and end, if they shall; its pods are deleted next."""
        if leaves_gracefully(choice, switches):
            pods = [member.pod for member in choice.pods]
            await self._change(pods, lambda reset: written(replace(reset, GracefulExit=1)))

    async def tell_whole(self, recovery: Recovery, pods: Iterable[Pod], now_s: float) -> None:
        """Tell the processes of a job that all of its pods are placed again.

        Args:
            recovery: what was done about the job.
            pods: its pods.
            now_s: the present, Unix seconds.
        """
        if recovery.is_leaving or recovery.restarts:
            await self._change(pods, lambda reset: whole(reset, recovery, now_s))

    async def _change(self, pods: Iterable[Pod], change: Callable[[Reset], dict[str, str]]) -> None:
        pod = next((named for named in pods if job_name(named.metadata.labels)), None)
        if pod is None:
            return
        name, namespace = RESET_CONFIG + job_name(pod.metadata.labels), pod.metadata.namespace
        try:
            data = change(read_reset((await self._client.get(CONFIG_MAPS, name, namespace)).data))
            await self._client.patch(CONFIG_MAPS, name, {"data": dict(data)}, namespace=namespace)
        except NotFound:
            return  # the job's processes are not told anything
        except InvalidValue as error:
            log.warning("can't tell a job's processes", config_map=f"{namespace}/{name}", error=error.message)
        except (ApiError, Unreachable) as error:
            log.warning("can't tell a job's processes", config_map=f"{namespace}/{name}", error=str(error))

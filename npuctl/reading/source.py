"""The source of a command's objects, with the settings and the time by which they are judged."""

import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from yaml import YAMLError

from allocator.settings import Settings
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue, Unreachable
from ascend.grammar import count, some
from ascend.jobs.table import TABLE
from ascend.kube.identity import Access, kubeconfig_paths, load_access
from npuctl.output import warn
from npuctl.reading.manifests import ManifestReading, read_manifests
from npuctl.reading.objects import HEALTH_NAMESPACE, ClusterObjects

if TYPE_CHECKING:
    from ascend.kube.client import KubeClient

DEFAULT_NAMESPACE: Final = "default"
_DAY_S: Final = 86_400
_DURATION: Final = re.compile(r"(?:([0-9]{1,4})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9}(?:\.[0-9]{1,3})?)s?)?", re.ASCII)
_OLD_S: Final = 60
"""Age of a file from which on it is said: what has changed since is not in it."""


@dataclass(frozen=True, slots=True)
class Overrides:
    """What the flags of kubectl say instead of the kubeconfig.

    Attributes:
        server: the address of the API server.
        token: the bearer token.
        user: the user to act as.
        group: the group to act as.
        kubeconfig_cluster: the cluster of the kubeconfig instead of the context's.
        kubeconfig_user: the user of the kubeconfig instead of the context's.
        timeout_s: the timeout of a request, infinite for none; None for the usual one.
    """

    server: str = ""
    token: str = ""
    user: str = ""
    group: str = ""
    kubeconfig_cluster: str = ""
    kubeconfig_user: str = ""
    timeout_s: float | None = None

    def apply_to(self, access: Access) -> Access:
        """Return the access that a kubeconfig gives, with what the flags say."""

        async def headers() -> Mapping[str, str]:
            given = dict(await access.headers())
            if self.token:
                given["Authorization"] = f"Bearer {self.token}"
            if self.user:
                given["Impersonate-User"] = self.user
            if self.group:
                given["Impersonate-Group"] = self.group
            return given

        return replace(access, url=self.server.rstrip("/") or access.url, headers=headers)


@dataclass(frozen=True, slots=True)
class Source:
    """A source of objects.

    Attributes:
        settings: the allocator's.
        now_ns: the time at which the objects are judged, Unix nanoseconds.
        now_given: the time was given, and is not the clock's.
        files: the files to read; if there are none, a cluster is read.
        kubeconfig: the path of the kubeconfig; None: as kubectl finds it.
        context: the context of the kubeconfig; None: the current one.
        overrides: what flags say instead of the kubeconfig.
    """

    settings: Settings
    now_ns: int
    now_given: bool = False
    files: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None
    overrides: Overrides = Overrides()

    @classmethod
    def of(
        cls,
        *,
        files: Sequence[str] | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        request_timeout: str | None = None,
        config: Path | None = None,
        values: Sequence[str] | None = None,
        now: str | None = None,
        **overrides: str | None,
    ) -> Self:
        """From the options of a command: the allocator's settings as ``key=value`` win over their file ``config``.

        The others are those of ``Overrides``.

        Raises:
            InvalidValue: an option is invalid.
        """
        settings = fixed_settings(Settings, config, dict(map(_setting, values or ())))
        TABLE.describe(settings.job_kinds)
        given = Overrides(
            **{name: text for name, text in overrides.items() if text}, timeout_s=read_timeout(request_timeout)
        )
        if given.group and not given.user:
            raise InvalidValue("--as-group needs --as")
        return cls(settings, read_time(now), now is not None, tuple(files or ()), kubeconfig, context, given)

    def at_present(self) -> Self:
        """Return the source with the clock's present time, unless a time was given."""
        return self if self.now_given else replace(self, now_ns=time.time_ns())

    async def read(self) -> ClusterObjects:
        """Read the objects.

        Raises:
            InvalidValue: a file is invalid.
            ApiError: the API server refused.
            Unreachable: the API server did not answer, or no kubeconfig names one.
        """
        if self.files:
            return self.read_files(strict=False).objects
        return await self.read_cluster()

    async def read_cluster(self) -> ClusterObjects:
        """List the objects of the cluster.

        Raises:
            ApiError: the API server refused.
            Unreachable: the API server did not answer, or no kubeconfig names one.
        """
        from npuctl.reading.listing import list_objects

        async with await self.connect() as client:
            return await list_objects(client, self.settings.node_health_namespace, skipped=warn)

    def read_files(self, *, strict: bool = True) -> ManifestReading:
        """Read the files, and print warnings on standard error; see ``read_manifests``.

        Raises:
            InvalidValue: a file is invalid.
        """
        reading = read_manifests(self.files, strict=strict)
        for sentence in reading.warnings:
            warn(sentence)
        if unused := reading.objects.unused_health_reports(self.settings):
            warn(
                f"MindCluster's ConfigMaps in {HEALTH_NAMESPACE} are used ({some(unused)}), as by an allocator with "
                f"node_health_namespace={HEALTH_NAMESPACE}; an allocator without that setting ignores them"
            )
        self._warn_of_the_clock(reading.objects)
        return reading

    def _warn_of_the_clock(self, objects: ClusterObjects) -> None:
        newest_s = max((report.update_time_s for report in objects.valid_reports.values()), default=0)
        age_s = self.now_ns // 10**9 - newest_s
        are_stale = age_s > self.settings.max_report_age_s
        if not newest_s or not (are_stale or (age_s >= _OLD_S and not self.now_given)):
            return
        newest = rfc3339(newest_s * 10**9)
        age = count(age_s // _DAY_S, "day") if age_s >= _DAY_S else f"{age_s} s"
        now = "the time given" if self.now_given else "now"
        stale = ", so all are stale" if are_stale else ""
        warn(
            f"the newest device report in the files is of {newest}, {age} before {now}{stale}; give the time of the "
            f"files by --now {newest}"
        )

    async def connect(self) -> "KubeClient":
        """Return a client of the cluster.

        Raises:
            Unreachable: no usable kubeconfig was found.
        """
        from ascend.kube.client import KubeClient  # a fifth of a second, in vain for files
        from ascend.kube.transport import REQUEST_TIMEOUT_S

        async def load() -> Access:
            given = self.overrides
            access = await load_access(
                self.kubeconfig, self.context, cluster=given.kubeconfig_cluster, user=given.kubeconfig_user
            )
            return given.apply_to(access)

        try:
            timeout_s = self.overrides.timeout_s
            return KubeClient(await load(), load, timeout_s=REQUEST_TIMEOUT_S if timeout_s is None else timeout_s)
        except InvalidValue as error:
            raise Unreachable(error.message) from error

    def namespace(self) -> str:
        """The namespace of a name without one: that of the kubeconfig's context, as with kubectl."""
        if self.files:
            return DEFAULT_NAMESPACE
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.config.kube_config import KubeConfigLoader

        try:
            # Not list_kube_config_contexts: it fails without a usable current context, whichever is wanted.
            chosen = KubeConfigLoader(self._kubeconfig(), self.context).current_context
            return str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)
        except (ConfigException, OSError, YAMLError, TypeError, ValueError, KeyError, AttributeError):
            return DEFAULT_NAMESPACE  # connect() reports what is wrong

    def names_in(self, part: Literal["clusters", "contexts", "users"]) -> list[str]:
        """The names in a part of the kubeconfig."""
        return [str(entry["name"]) for entry in self._kubeconfig()[part]]

    def _kubeconfig(self) -> Any:
        from kubernetes.aio.config.kube_config import KubeConfigMerger

        return KubeConfigMerger(kubeconfig_paths(self.kubeconfig)).config


def read_timeout(text: str | None) -> float | None:
    """Return a timeout in seconds, as kubectl reads it; 0 is infinite, and None is none that was given.

    Raises:
        InvalidValue: it is nothing of that kind.
    """
    return None if text is None else read_duration("--request-timeout", text) or math.inf


def read_duration(option: str, text: str) -> float:
    """Return seconds as kubectl reads them: ``30s``, ``2m``, ``1h30m``, or a number of seconds.

    Raises:
        InvalidValue: the text is nothing of that kind.
    """
    found = _DURATION.fullmatch(text)
    if found is None or not text:
        raise InvalidValue(f"{option}: {text!r} is not a time like 30s, 2m or 1h30m")
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return 3600 * hours + 60 * minutes + seconds


def read_time(text: str | None) -> int:
    """Return a time as Unix nanoseconds; the clock's if not given.

    Raises:
        InvalidValue: it is not a time.
    """
    if text is None:
        return time.time_ns()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue(f"--now: {text!r} is not an RFC 3339 time like 2026-01-31T12:00:00Z")
    whole_s = int(moment.replace(microsecond=0).timestamp())
    return whole_s * 10**9 + moment.microsecond * 1000


def rfc3339(time_ns: int) -> str:
    """Return a time in Unix nanoseconds as people and programs read it, in whole seconds."""
    return datetime.fromtimestamp(time_ns // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidValue(f"--set: {text!r} is not key=value")
    return key, value

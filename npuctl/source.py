"""Where a command's objects come from: a cluster, or files; and by which settings and clock they are judged."""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Self

from yaml import YAMLError

from allocator.settings import Settings
from ascend.daemon.settings import fixed_settings
from ascend.errors import InvalidValue, Unreachable
from ascend.kube.client import KubeClient
from npuctl.manifests import Reading, read_manifests
from npuctl.output import some, warn
from npuctl.snapshot import HEALTH_NAMESPACE, Snapshot

DEFAULT_NAMESPACE = "default"


@dataclass(frozen=True, slots=True)
class Source:
    """A source of objects.

    Attributes:
        settings: the allocator's.
        now_ns: the present, Unix nanoseconds.
        files: to be read; where there are none, a cluster is.
        kubeconfig: which file; None: what kubectl would take.
        context: which of its contexts; None: the current one.
    """

    settings: Settings
    now_ns: int
    files: tuple[str, ...] = ()
    kubeconfig: str | None = None
    context: str | None = None

    @classmethod
    def of(
        cls,
        *,
        files: Sequence[str] = (),
        kubeconfig: str | None = None,
        context: str | None = None,
        config: Path | None = None,
        values: Sequence[str] = (),
        now: str | None = None,
    ) -> Self:
        """From the options of a command.

        Args:
            files: to be read.
            kubeconfig: which file.
            context: which of its contexts.
            config: the allocator's settings file.
            values: settings as ``key=value``, which go before the file's.
            now: the present, RFC 3339; the clock's if not given.

        Raises:
            InvalidValue: one of them means nothing.
        """
        settings = fixed_settings(Settings, config, dict(map(_setting, values)))
        return cls(settings, read_time(now), tuple(files), kubeconfig, context)

    async def read(self) -> Snapshot:
        """Read the objects.

        Raises:
            InvalidValue: a file can't be used.
            ApiError: the API server refused.
            Unreachable: it doesn't answer, or nothing says where it is.
        """
        if self.files:
            return self.read_files().snapshot
        async with await self.connect() as client:
            return await Snapshot.fetch(client, self.settings.node_health_namespace)

    def read_files(self) -> Reading:
        """Read the files; what may surprise is told on standard error.

        Raises:
            InvalidValue: one can't be used.
        """
        reading = read_manifests(self.files)
        for sentence in reading.warnings:
            warn(sentence)
        if agents := reading.snapshot.agents_unasked(self.settings):
            warn(
                f"what NodeD says in {HEALTH_NAMESPACE} is heeded ({some(agents)}), as by an allocator with "
                f"node_health_namespace={HEALTH_NAMESPACE}; one without that setting does not read it"
            )
        return reading

    async def connect(self) -> KubeClient:
        """A client of the cluster.

        Raises:
            Unreachable: nothing says where it is.
        """
        named = self._named
        if named and not any(map(_is_there, named.split(os.pathsep))):
            raise Unreachable(f"no usable access to the API server: there is no file {named}")
        try:
            return await KubeClient.connect(self.kubeconfig, self.context)
        except InvalidValue as error:
            raise Unreachable(error.message) from error

    @property
    def _named(self) -> str | None:
        """The kubeconfig files that somebody has named."""
        return self.kubeconfig or os.environ.get("KUBECONFIG")

    def namespace(self) -> str:
        """The namespace that is meant where none is named: that of the kubeconfig's context, as with kubectl."""
        if self.files:
            return DEFAULT_NAMESPACE
        from kubernetes.aio.config import ConfigException
        from kubernetes.aio.config.kube_config import (
            KUBE_CONFIG_DEFAULT_LOCATION,
            KubeConfigLoader,
            KubeConfigMerger,
        )

        path = self._named or KUBE_CONFIG_DEFAULT_LOCATION
        try:
            # Not list_kube_config_contexts: it wants a current context that is there, whichever is meant.
            chosen = KubeConfigLoader(KubeConfigMerger(path).config, self.context).current_context
            return str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)
        except (ConfigException, OSError, YAMLError, TypeError, ValueError, KeyError, AttributeError):
            return DEFAULT_NAMESPACE  # who then reads the cluster says what is wrong


def _is_there(path: str) -> bool:
    # Of pathlib's either raises where it can't say.
    return os.path.exists(os.path.expanduser(path))  # noqa: PTH110, PTH111


def read_time(text: str | None) -> int:
    """The present as Unix nanoseconds: as given, else the clock's.

    Raises:
        InvalidValue: it is no time.
    """
    if text is None:
        return time.time_ns()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidValue(f"--now: {text!r} is no RFC 3339 time, such as 2026-01-31T12:00:00Z")
    whole_s = int(moment.replace(microsecond=0).timestamp())
    return whole_s * 10**9 + moment.microsecond * 1000


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InvalidValue(f"--set: {text!r} is not key=value")
    return key, value

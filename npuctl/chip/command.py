"""Carries out ``npuctl chip cordon`` and ``npuctl chip uncordon``: the only commands that write to a cluster.

They edit the list that the device plugin heeds, with who, when and why, and post an Event on the Node.
"""

import os
from collections.abc import Sequence
from typing import Final

import msgspec
from rich.text import Text

from ascend.base_device_infos import BASE_DEVICE_INFOS, read_base_device_infos
from ascend.chips import ChipSet, chip_ids, chip_name, chip_set
from ascend.cordons import CORDONED, Cordon, read_cordons, write_cordons
from ascend.deviceinfo import (
    MANUALLY_SEPARATED,
    NAMESPACE,
    OUR_PLUGIN,
    WRITTEN_BY,
    config_map_name,
    read_manually_separated,
)
from ascend.errors import ApiError, Conflict, InvalidValue, NotFound
from ascend.kube.answers import decode
from ascend.kube.client import KubeClient
from ascend.kube.events import EventRecorder, Regarding
from ascend.kube.objects import CONFIG_MAPS, NODES, ConfigMap, JsonObject
from ascend.printable import printable
from npuctl.chips import numbers, read_numbers
from npuctl.output import make_console, print_table
from npuctl.reading.source import Source, rfc3339

_LONGEST_REASON: Final = 256
_ATTEMPTS: Final = 10
_AUTHENTICATION: Final = "authentication.k8s.io/v1"


class _User(msgspec.Struct, frozen=True):
    username: str = ""


class _ReviewStatus(msgspec.Struct, rename="camel", frozen=True):
    user_info: _User = _User()


class _SelfReview(msgspec.Struct, frozen=True):
    status: _ReviewStatus = _ReviewStatus()


async def run_cordon(source: Source, node: str, chips: Sequence[str], reason: str, *, cordons: bool) -> int:
    """Take chips of a node out of use, or put them back, and say so; see ``change_cordons``.

    Raises:
        InvalidValue: the node has no such chip, or the chips can't be changed in this way; nothing was.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    if source.files:
        raise InvalidValue("npuctl chip changes a cluster, not files")
    async with await source.connect() as client:
        said = await change_cordons(client, node, chips, reason, source.now_ns, cordons=cordons)
    print_table(make_console(), Text(said))
    return 0


async def change_cordons(
    client: KubeClient, node: str, chips: Sequence[str], reason: str, now_ns: int, *, cordons: bool
) -> str:
    """Take chips of a node out of use, or put them back.

    Args:
        client: the API server.
        node: the node's name.
        chips: the chips, as ``read_numbers`` reads them.
        reason: why.
        now_ns: the time, Unix nanoseconds.
        cordons: take them out of use; else put them back.

    Returns:
        What was done, a sentence.

    Raises:
        InvalidValue: the node has no such chip, or the chips can't be changed in this way; nothing was.
        ApiError: the API server refused.
        Unreachable: the API server did not answer.
    """
    reason = " ".join(reason.split())
    if len(reason) > _LONGEST_REASON:
        raise InvalidValue(f"--reason has {len(reason)} characters; {_LONGEST_REASON} are the most")
    if cordons and not reason:
        raise InvalidValue("--reason is empty: say why, for whoever finds the chips out of use")
    try:
        wanted = chip_set(chip for text in chips for chip in chip_ids(read_numbers(text)))
    except InvalidValue as error:
        raise InvalidValue(f"node {node}: {error.message}") from None
    await _require_chips(client, node, wanted)
    cordon = Cordon(reason, await _user(client), rfc3339(now_ns))
    await _edit(client, node, wanted, cordon if cordons else None)
    what = f"{'chip' if wanted.bit_count() == 1 else 'chips'} {numbers(tuple(map(chip_name, chip_ids(wanted))))}"
    done, why = "cordoned" if cordons else "uncordoned", f": {printable(reason)}" if reason else ""
    await _announce(client, node, f"{what} {done} by {cordon.by or 'an unknown user'}{why}", cordons=cordons)
    return f"node {node}: {what} {done}{why}"


async def _require_chips(client: KubeClient, node: str, wanted: ChipSet) -> None:
    """Accept chips that a node has.

    Raises:
        InvalidValue: there is no such node, or it has not all of them.
    """
    try:
        found = await client.get(NODES, node)
        infos = read_base_device_infos(found.metadata.annotations.get(BASE_DEVICE_INFOS, ""))
    except NotFound:
        raise InvalidValue(f"there is no node {node}") from None
    except InvalidValue as error:
        raise InvalidValue(f"node {node}: it is not known which chips it has: {error.message}") from None
    there = infos.chips | infos.withheld
    if absent := wanted & ~there:
        has = numbers(tuple(map(chip_name, chip_ids(there)))) or "no chips"
        raise InvalidValue(f"node {node} has no {chip_name(chip_ids(absent)[0])}; it has {has}")


async def _user(client: KubeClient) -> str:
    """Who we are, as the API server says; empty if it does not know the question (before Kubernetes 1.28)."""
    body: JsonObject = {"apiVersion": _AUTHENTICATION, "kind": "SelfSubjectReview"}
    try:
        answer = await client.request("POST", f"/apis/{_AUTHENTICATION}/selfsubjectreviews", body=body)
    except NotFound:
        return ""
    return decode(answer, _SelfReview, "SelfSubjectReview").status.user_info.username


async def _edit(client: KubeClient, node: str, wanted: ChipSet, cordon: Cordon | None) -> None:
    """Edit the list of a node's report.

    Raises:
        InvalidValue: the report is not our device plugin's, or a chip to put back is not out of use.
        Conflict: others write the report all the time.
    """
    name, attempts = config_map_name(node), _ATTEMPTS
    while True:
        attempts -= 1
        try:
            report = await client.get(CONFIG_MAPS, name, NAMESPACE)
        except NotFound:
            raise InvalidValue(
                f"node {node} has no report ({NAMESPACE}/{name}): its device plugin has to run first"
            ) from None
        if report.metadata.annotations.get(WRITTEN_BY) != OUR_PLUGIN:
            raise InvalidValue(
                f"node {node}: this project's device plugin does not write its report, and MindCluster's does not heed "
                "which chips people take out of use"
            )
        separated = read_manually_separated(report.data)[0]
        if cordon is None and (others := wanted & ~separated):
            raise InvalidValue(f"node {node}: {chip_name(chip_ids(others)[0])} is not cordoned")
        try:
            await client.patch(CONFIG_MAPS, name, _patch(report, wanted, cordon), namespace=NAMESPACE)
        except Conflict:  # its device plugin has written meanwhile
            if not attempts:
                raise
        else:
            return


def _patch(report: ConfigMap, wanted: ChipSet, cordon: Cordon | None) -> JsonObject:
    """The change of a report, if unchanged since it was read. Entries that name no chip stay."""
    names = [chip_name(chip) for chip in chip_ids(wanted)]
    entries = map(str.strip, report.data.get(MANUALLY_SEPARATED, "").split(","))
    listed = [entry for entry in entries if entry and entry not in names]
    cordons = {chip: cordon for chip, cordon in read_cordons(report).items() if not wanted >> chip & 1}
    if cordon is not None:
        listed += names
        cordons |= dict.fromkeys(chip_ids(wanted), cordon)
    annotations = {CORDONED: write_cordons(cordons)}
    metadata = {"resourceVersion": report.metadata.resource_version, "annotations": annotations}
    return {"metadata": metadata, "data": {MANUALLY_SEPARATED: ",".join(listed)}}


async def _announce(client: KubeClient, node: str, note: str, *, cordons: bool) -> None:
    """Post an Event on the Node.

    Raises:
        ApiError: it was refused; the chips are changed nevertheless.
    """
    recorder = EventRecorder(client, "npuctl", os.uname().nodename or "npuctl")
    reason, action = ("NPUCordoned", "Cordon") if cordons else ("NPUUncordoned", "Uncordon")
    try:
        await recorder.post(Regarding("Node", node, uid=node), reason, note, action=action, warning=cordons)
    except ApiError as error:
        sentence = f"node {node}: {note}; but no Event says so: {error.message}"
        raise ApiError(sentence, status=error.status, reason=error.reason) from error

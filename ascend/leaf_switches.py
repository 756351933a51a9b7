"""The table of leaf switches: which servers are below each, from MindCluster's ConfigMap ``basic-tor-node-cm``.

docs/spec/switch-affinity.md#inputs. What can't be read costs only itself: an entry of the list that is malformed is
left out, and named.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Final, TypeAlias

import msgspec

from ascend.errors import UNREADABLE
from ascend.kube.objects import ConfigMap

NAME: Final = "basic-tor-node-cm"
_MOST_SHOWN: Final = 60
"""Characters."""
_INFO, _LEVEL, _SINGLE_LAYER = "tor_info", "tor_level", "single_layer"

_Id: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Spot(msgspec.Struct, frozen=True, gc=False, order=True):
    """A server.

    Attributes:
        switch: the number of its switch.
        slot: its slot there.
    """

    switch: int
    slot: int


class _Server(msgspec.Struct, frozen=True):
    server_ip: Annotated[str, msgspec.Meta(min_length=1)]
    slice_id: _Id | None = None


class _Switch(msgspec.Struct, frozen=True):
    tor_id: _Id
    tor_ip: str = ""
    server: tuple[msgspec.Raw, ...] = ()


class _Info(msgspec.Struct, frozen=True):
    tor_count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    server_list: tuple[msgspec.Raw, ...]
    tor_level: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET


class SwitchTable(msgspec.Struct, frozen=True):
    """The leaf switches of a cluster.

    Attributes:
        width: how many servers a switch has.
        is_single_layer: whether there are no switches that connect these.
        switches: the IP addresses of the switches, by number (``tor_id``).
        servers: where each server is, by its IP address.
        problems: what could not be read and is left out, a sentence each.
    """

    width: int
    is_single_layer: bool
    switches: Mapping[int, str]
    servers: Mapping[str, Spot]
    problems: Sequence[str] = ()


def read_switches(config_map: ConfigMap) -> SwitchTable | str:
    """Read the table; a sentence that names the field if nothing of it can be used.

    If every server is left out, that is the first problem.
    """
    where = f"ConfigMap {config_map.key}: {_INFO}"
    text = config_map.data.get(_INFO)
    if text is None:
        return f"ConfigMap {config_map.key} has no key {_INFO}"
    try:
        info = msgspec.json.decode(text, type=_Info)
    except UNREADABLE as error:
        return f"{where}: {error} in {_shown(text)}"
    switches: dict[int, str] = {}
    servers: dict[str, Spot] = {}
    problems: list[str] = []
    for number, raw in enumerate(info.server_list):
        at = f"{where}: server_list[{number}]"
        try:
            switch = msgspec.json.decode(raw, type=_Switch)
        except UNREADABLE as error:
            problems.append(f"{at}: {error} in {_shown(raw)}")
            continue
        if switch.tor_id in switches:
            problems.append(f"{at}: tor_id {switch.tor_id} occurs twice; its servers are left out")
            continue
        if len(switch.server) > info.tor_count:
            problems.append(f"{at}: has {len(switch.server)} servers, more than tor_count, {info.tor_count}; left out")
            continue
        switches[switch.tor_id] = switch.tor_ip
        _read_servers(switch, at, servers, problems)
    if problems and not servers:
        return problems[0]
    if info.tor_level is not msgspec.UNSET:
        problems.append(f"{where}: {_LEVEL} is not read there: it is a key of the ConfigMap's data, beside {_INFO}")
    level = config_map.data.get(_LEVEL, "")
    if level not in ("", _SINGLE_LAYER, "two_layer"):
        problems.append(f"ConfigMap {config_map.key}: {_LEVEL}={level[:40]!r} is not {_SINGLE_LAYER}; it is ignored")
    return SwitchTable(info.tor_count, level == _SINGLE_LAYER, switches, servers, tuple(problems))


def _read_servers(switch: _Switch, at: str, servers: dict[str, Spot], problems: list[str]) -> None:
    read: list[tuple[bool, int, str, str]] = []  # whether the slot is a place in the list; the slot; what is read
    for number, raw in enumerate(switch.server):
        here = f"{at}.server[{number}]"
        try:
            server = msgspec.json.decode(raw, type=_Server)
        except UNREADABLE as error:
            problems.append(f"{here}: {error} in {_shown(raw)}")
            continue
        slot = server.slice_id
        read.append((slot is None, number if slot is None else slot, here, server.server_ip))
    slots: set[int] = set()
    for is_place, slot, here, address in sorted(read, key=lambda row: row[0]):  # the slots that are written first
        if address in servers:
            problems.append(f"{here}: server_ip {address[:40]} occurs twice; left out")
        elif slot not in slots:
            slots.add(slot)
            servers[address] = Spot(switch.tor_id, slot)
        elif is_place:
            problems.append(f"{here}: its place in the list, {slot}, is the slice_id of another; left out")
        else:
            problems.append(f"{here}: slice_id {slot} occurs twice below the switch; the first one counts")


def _shown(written: msgspec.Raw | str) -> str:
    """The beginning of what is written, for an error."""
    text = written if isinstance(written, str) else bytes(written).decode(errors="replace")
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"

"""The plugin's structures have the layout that a C compiler gives those of the specification."""

import ctypes

import pytest

from device_plugin.driver.dcmi import structures
from tests.dcmi import compiler

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "chip_info": structures.ChipInfo,
    "chip_info_v2": structures.ChipInfoV2,
    "board_info": structures.BoardInfo,
    "hbm_info": structures.HbmInfo,
    "die_id": structures.DieId,
    "ip_addr": structures.IpAddress,
    "pcie_info": structures.PcieInfo,
    "spod_info": structures.SuperPodInfo,
    "base_resource": structures.BaseResource,
    "computing_resource": structures.ComputingResource,
    "media_resource": structures.MediaResource,
    "total_resource": structures.TotalResource,
    "free_resource": structures.FreeResource,
    "create_vdev_res": structures.VirtualDeviceRequest,
    "create_vdev_out": structures.CreatedVirtualDevice,
    "vdev_info": structures.VirtualDeviceInfo,
    "vdev_query": structures.VirtualDeviceQuery,
    "fault_event": structures.FaultEventRecord,
    "event": structures.Event,
    "event_filter": structures.EventFilter,
    "proc_mem_info": structures.ProcessInfo,
}


@pytest.fixture(scope="module")
def layout() -> dict[tuple[str, str], tuple[int, int]]:
    """Offset and size by structure and member, from the compiler."""
    lines = []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} - 0 %zu\\n", sizeof(struct {name}));')
        for member, *_ in structure._fields_:
            where = f"offsetof(struct {name}, {member}), sizeof(((struct {name} *)0)->{member})"
            lines.append(f'printf("{name} {member} %zu %zu\\n", {where});')
    headers = '#include "dcmi_abi.h"\n#include <stddef.h>\n#include <stdio.h>\n'
    printed = compiler.run(headers + "int main(void) {\n" + "\n".join(lines) + "\n}\n")
    rows = (line.split() for line in printed.splitlines())
    return {(name, member): (int(offset), int(size)) for name, member, offset, size in rows}


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_member_has_the_compilers_offset_and_size(
    name: str, layout: dict[tuple[str, str], tuple[int, int]]
) -> None:
    structure = STRUCTURES[name]
    believed = {(name, "-"): (0, ctypes.sizeof(structure))}
    for member, *_ in structure._fields_:
        field = getattr(structure, member)
        believed[name, member] = (field.offset, field.size)
    assert believed == {key: place for key, place in layout.items() if key[0] == name}


def test_every_structure_of_the_plugin_is_checked() -> None:
    ours = {
        each
        for each in vars(structures).values()
        if isinstance(each, type) and issubclass(each, ctypes.Structure) and each.__module__ == structures.__name__
    }
    assert ours == set(STRUCTURES.values())

"""Which answers of the driver are not as docs/spec/dcmi.md says; the tests' fake library gives none of them."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from ascend.grammar import count
from ascend.products import PRODUCTS
from ascend.rules.identity import CHIP_OF_SERVER_TYPE
from device_plugin.driver import ChipType
from device_plugin.driver.dcmi.errors import MEANINGS, MISSING, UNSUPPORTED
from device_plugin.driver.dcmi.recording import Call

_SLOW_MS: Final = 1000.0
_NO_ADDRESS: Final = -8005
_ABSENT: Final = frozenset({UNSUPPORTED, MISSING})
_MAY_FAIL: Final[Mapping[str, frozenset[int]]] = {
    "dcmi_get_device_chip_info_v2": _ABSENT,
    "dcmi_get_device_ip": _ABSENT | {_NO_ADDRESS},
    "dcmi_get_affinity_cpu_info_by_device_id": _ABSENT,
    "dcmi_get_device_pcie_info_v2": _ABSENT,
    "dcmi_get_device_boot_status": _ABSENT,
}
"""What the device plugin does without."""
_SUPER_POD: Final = 12
_ON_TWO: Final = frozenset({12, 13})
"""The kinds of ``dcmi_get_device_utilization_rate`` that a 910A does not have."""


def surprises(calls: Iterable[Call], chip_type: ChipType | None, chips: int) -> Iterator[str]:
    """Yield a sentence for each kind of answer that is not expected.

    Args:
        calls: the calls.
        chip_type: the type of the server's chips; None if unknown.
        chips: their number.
    """
    if chip_type is not None and chips not in (known := _sizes(chip_type)):
        yield f"no product has {count(chips, 'chip')} of type {chip_type}, only {', '.join(map(str, sorted(known)))}"
    failed: Counter[tuple[str, int | None]] = Counter()
    slow: dict[str, float] = {}
    for call in calls:
        if call.code and not _is_expected(call, chip_type):
            failed[_asked(call), call.code] += 1
        elif call.code is None:
            failed[_asked(call), None] += 1
        if call.took_ms > _SLOW_MS:
            slow[call.function] = max(call.took_ms, slow.get(call.function, 0.0))
    for (asked, code), times in sorted(failed.items(), key=str):
        what = "did not return" if code is None else f"returned {code} ({MEANINGS.get(code, 'not documented')})"
        yield f"{asked} {what}, {count(times, 'time')}"
    for function, longest_ms in sorted(slow.items()):
        yield f"{function} took up to {longest_ms / 1000:.1f} s"


def _sizes(chip_type: ChipType) -> set[int]:
    return {product.chips for product in PRODUCTS.values() if product.chip in {"", CHIP_OF_SERVER_TYPE[chip_type]}}


def _asked(call: Call) -> str:
    """The function with what it is asked for beside the chip: the arguments after card and device."""
    return f"{call.function}({', '.join(map(str, call.arguments[2:]))})"


def _is_expected(call: Call, chip_type: ChipType | None) -> bool:
    kind: Sequence[object] = call.arguments[2:3]
    if call.function == "dcmi_get_device_info" and _SUPER_POD in kind:
        return chip_type != "Ascend910A3" and call.code == UNSUPPORTED
    if call.function == "dcmi_get_device_utilization_rate" and _ON_TWO.intersection(kind):
        return chip_type == "Ascend910" and call.code == UNSUPPORTED
    return call.code in _MAY_FAIL.get(call.function, ())

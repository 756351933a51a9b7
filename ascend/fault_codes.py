"""What the fault codes of chips mean, and what their levels ask for (docs/spec/faults.md#meanings).

A code of eight digits names a module of the chip, a sensor of it and a state: module << 17 | sensor << 8 | state, below
two bits. The states are those of the driver's RAS sensor; other sensors have states of their own, so of their codes
only the module is said. Codes are written as in reports: upper-case hex without ``0x``.
"""

import re
from collections.abc import Mapping
from typing import Final

_CODE: Final = re.compile(r"(0[xX])?[0-9a-fA-F]{8}")
_MODULE_BITS: Final = 17
_MODULE_MASK: Final = 0xFFF
_SENSOR_MASK: Final = 0x1FF
_RAS: Final = 0x180

_KNOWN: Final[Mapping[str, str]] = {
    "200001002": "its processes do nothing",
    "40F84E00": "it does not answer",
    "80C98000": "the instruction cache of an AI core differs from the memory",
    "80C98009": "bus error of its AI cores",
    "80CB8009": "bus error of its AI cores",
    "80E01801": "uncorrectable error of its memory",
    "80E18400": "an uncorrectable error of its memory was recorded",
    "80E18401": "16 rows of its memory have had uncorrectable errors",
    "80E18402": "64 rows of its memory have had uncorrectable errors, the most that can be isolated",
    "81078603": "no link",
    "81AFAA06": "error of the network of its UB memory",
    "8C2FA009": "it was reset",
}
"""Codes with a meaning of their own."""

_MODULES: Final[Mapping[int, str]] = {
    0x40: "the chip as a whole (SoC)",
    0x50: "CPU core",
    0x51: "level 3 cache, data",
    0x52: "level 3 cache, tags",
    0x53: "mesh of the chip",
    0x56: "interrupt controller",
    0x58: "MN node of its bus",
    0x59: "CS node of its bus",
    0x5A: "link of its I/O die (SIOE)",
    0x5B: "SLLC link",
    0x5C: "PCIe",
    0x5D: "RoCE",
    0x5E: "network controller",
    0x63: "task scheduler (TS)",
    0x64: "AI core (cube)",
    0x65: "AI core (vector)",
    0x66: "level 2 buffer",
    0x67: "system DMA",
    0x68: "DVPP",
    0x69: "JPEG decoder",
    0x6A: "JPEG encoder",
    0x6C: "video decoder",
    0x6D: "video encoder",
    0x6E: "image processing (VPC)",
    0x6F: "memory (DDR)",
    0x70: "memory (HBM)",
    0x71: "power management (LPM)",
    0x72: "security module (HSM)",
    0x73: "secure driver (TEE)",
    0x78: "memory controller",
    0x79: "memory controller",
    0x7B: "task scheduler's hardware (HWTS)",
    0x7D: "processor of the task scheduler",
    0x83: "network port",
    0x99: "dispatcher of the task scheduler",
    0x9D: "dispatcher of the AI cores",
    0x9E: "bus of the AI cores",
    0xA3: "dispatcher of DVPP",
    0xAF: "dispatcher of the peripherals",
    0xCB: "dispatcher of PCIe",
    0xD7: "UB",
    0xD8: "UB port",
    0xDA: "dispatcher of UB",
}

_STATES: Final[Mapping[int, str]] = {
    0x0: "error",
    0x1: "error that can't be mended",
    0x2: "wrong input",
    0x3: "wrong internal configuration",
    0x4: "wrong configuration",
    0x5: "parity error",
    0x6: "many corrected (single bit) errors",
    0x7: "single bit error that was not corrected",
    0x8: "uncorrectable (multiple bit) error",
    0x9: "bus error",
    0xA: "time-out",
    0xB: "no heartbeat",
    0xC: "kernel module not loaded",
    0xD: "failed initialization",
    0xE: "wrong internal configuration, minor",
    0xF: "wrong configuration, minor",
}

_ACTIONS: Final[Mapping[str, tuple[str, str]]] = {
    "SubHealthFault": ("move the job if it is slow", "the chip works, but not well"),
    "RestartRequest": ("repeat the request; if it fails again, restart the job", "watch the chip"),
    "RestartBusiness": ("restart the job", "watch the chip"),
    "FreeRestartNPU": ("let the pods on it end", "the chip has to be reset"),
    "RestartNPU": ("end the pods on it", "the chip has to be reset"),
    "PreSeparateNPU": ("let the pods on it end; no other pod gets it", "the chip has to be repaired"),
    "SeparateNPU": ("end the pods on it", "the chip has to be repaired or replaced"),
    "ManuallySeparateNPU": (
        "end the pods on it",
        "the chip has to be repaired or replaced, and put back by npuctl chip uncordon",
    ),
}
"""What to do about a fault, by its level: first with the pods on the chip, then with the chip."""


def action(level: str, *, in_use: bool) -> str:
    """What to do about a fault of a level; empty if there is nothing to do."""
    pods, chip = _ACTIONS.get(level, ("", ""))
    return f"{pods}; {chip}" if in_use and pods else chip


def meaning_of(code: str) -> str:
    """What a code means; empty if that is not published."""
    code = code.upper().removeprefix("0X")
    if (known := _KNOWN.get(code)) is not None:
        return known
    if _CODE.fullmatch(code) is None:
        return ""
    number = int(code, 16)
    module = _MODULES.get(number >> _MODULE_BITS & _MODULE_MASK)
    if module is None or not 0x80000000 <= number < 0x82000000:  # noqa: PLR2004 - the codes of the chip's own modules
        return ""
    is_ras, state = number >> 8 & _SENSOR_MASK == _RAS, _STATES.get(number & 0xFF)
    return f"{module}: {state}" if is_ras and state is not None else f"fault of: {module}"


def explained(code: str) -> str:
    """A code with its meaning, if that is known."""
    meaning = meaning_of(code)
    return f"{code} ({meaning})" if meaning else code

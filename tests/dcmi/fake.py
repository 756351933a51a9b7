"""A server without real chips: the fake library, and the file with its answers.

A program finds the fake through its environment::

    fake = FakeDcmi(folder, ascend_910b(8))
    subprocess.Popen([...], env={**os.environ, **fake.environment()})
    fake.chip(3).codes = (0x80E18402,)
    with fake.hang("dcmi_get_device_health", card=2): ...
"""

import contextlib
import os
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from tests.dcmi import compiler

FOREVER_S: Final = 3600.0
_CUT: Final = struct.Struct("IIi16s")
_COUNTER: Final = struct.Struct("56sQ")


@dataclass
class FakeChip:
    """A chip. Setting an attribute writes the file at once; ``codes`` can be a mapping from code to severity."""

    card: int = 0
    device: int = 0
    logic: int = 0
    phy: int = 0
    name: str = "910B3"
    npu_name: str = ""
    board: int = 0x30
    aicores: int = 20
    hbm: int = 65536
    ip: str = ""
    sdid: int | None = None
    pod: int | None = None
    server: int | None = None
    affinity: str = ""
    bdf: str = ""
    utilization: int = 0
    vector: int = 0
    overall: int = 0
    hbm_used: int = 3072
    hbm_percent: int = 5
    hbm_temp: int = 38
    hbm_rate: int = 0
    temperature: int = 41
    power: int = 925
    voltage: int = 90
    frequency: int = 1000
    network: int = 0
    die: str = ""
    health: int = 0
    codes: Iterable[int] | Mapping[int, int] = ()
    vnpus: Mapping[int, str] = field(default_factory=dict)
    dropped: bool = False
    absent: bool = False
    lost: bool = False
    processes: Iterable[int] = ()
    held: bool = False
    boot: int = 16
    cpus: int | None = None
    brother: int | None = None

    _changed: Callable[[], None] | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if self._changed is not None:
            self._changed()

    def line(self) -> str:
        """The chip's line in the file."""
        severities = self.codes if isinstance(self.codes, Mapping) else dict.fromkeys(self.codes, 2)
        words = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "_changed"}
        words["codes"] = ",".join(f"{code:X}:{severity}" for code, severity in severities.items())
        words["vnpus"] = ",".join(f"{vdev_id}:{template}" for vdev_id, template in self.vnpus.items())
        words |= {name: int(words[name]) for name in ("dropped", "absent", "lost", "held")}
        words["processes"] = ",".join(map(str, self.processes))
        return "chip " + " ".join(f"{key}={value}" for key, value in words.items() if value not in {None, ""})


def ascend_910b(chips: int = 8) -> list[FakeChip]:
    """A server with 910B3 chips, one per card, as in the reference's measurements."""
    return [
        FakeChip(card=number, logic=number, phy=number, ip=f"10.20.0.{number + 1}", affinity="0-1")
        for number in range(chips)
    ]


def ascend_910a(chips: int = 8) -> list[FakeChip]:
    """An Atlas 800 (9000): 910A chips, one per card."""
    return [
        FakeChip(card=number, logic=number, phy=number, name="910A", board=0x20, aicores=32, hbm=32768)
        for number in range(chips)
    ]


def ascend_a3(cards: int = 8, *, super_pod: int = 7, server: int = 2) -> list[FakeChip]:
    """A SuperPod server: two dies per card, each of which is a chip."""
    return [
        FakeChip(
            card=number // 2,
            device=number % 2,
            logic=number,
            phy=number,
            name="Ascend910",
            npu_name="Ascend910_9382",
            board=0xB0,
            aicores=24,
            ip=f"10.30.0.{number + 1}",
            sdid=0x0200_0000 + number,
            pod=super_pod,
            server=server,
        )
        for number in range(cards * 2)
    ]


class FakeDcmi:
    """The fake library in a folder, with the file of its answers.

    Args:
        folder: an empty folder that only root and this user can write to.
        chips: the chips of the server.
        library: a built library; by default the complete fake.
    """

    def __init__(self, folder: Path, chips: list[FakeChip], *, library: Path | None = None) -> None:
        self.library = folder / "libdcmi.so"
        """The library; every fake has a copy, so that a process can load several."""
        self._state = folder / "state"
        self._counts = folder / "calls"
        self._lock = threading.RLock()
        self._chips = chips
        self._rules: list[str] = []
        self._events: list[str] = []
        self._written_ns = 0
        self.version = "24.1.0"
        self.lose_events = False
        self.serialise = False
        self.event_delay_s = 0.0
        self.code_delay_s = 0.0
        self.down_s = 0.1
        self.boot_s = 0.1
        self.keep_faults = False
        self.lone_cards = False
        self.contained: tuple[int, ...] = ()
        shutil.copy(library if library is not None else compiler.fake_library(), self.library)
        self.library.chmod(0o755)
        for chip in chips:
            chip._changed = self.save
        self.save()

    def environment(self) -> dict[str, str]:
        """The environment in which a program finds the fake, and the fake its file."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "FAKE_DCMI_STATE": str(self._state)}

    def chip(self, phy: int) -> FakeChip:
        """The chip with this physical id."""
        return next(each for each in self._chips if each.phy == phy)

    def set(self, **options: object) -> None:
        """Change ``version``, ``lose_events``, ``serialise``, ``event_delay_s`` or ``code_delay_s``.

        For vNPUs that are created: ``contained``, the ids of those that containers have.
        For resets: ``down_s``, ``boot_s``, ``keep_faults`` or ``lone_cards``.
        """
        for name, value in options.items():
            setattr(self, name, value)
        self.save()

    def save(self) -> None:
        """Write the file atomically."""
        with self._lock:
            lines = [f"version {self.version}", f"count {self._counts}", *(each.line() for each in self._chips)]
            lines += [
                f"event_delay {round(self.event_delay_s * 1000)}",
                f"code_delay {round(self.code_delay_s * 1000)}",
                f"cuts {self._state.with_name('cuts')}",
                *[f"contained {','.join(map(str, self.contained))}"] * bool(self.contained),
                f"resets {self._state.with_name('resets')}",
                f"down {round(self.down_s * 1000)}",
                f"boot {round(self.boot_s * 1000)}",
                *["keep_faults"] * self.keep_faults,
                *["lone_cards"] * self.lone_cards,
            ]
            lines += ["serialise"] * self.serialise + ["lose_events"] * self.lose_events + self._rules + self._events
            scratch = self._state.with_suffix(".new")
            scratch.write_text("\n".join([*lines, ""]))
            # Explicit times: the kernel's clock is too coarse to distinguish two versions.
            self._written_ns = max(self._written_ns + 1, time.time_ns())
            os.utime(scratch, ns=(self._written_ns, self._written_ns))
            scratch.replace(self._state)

    def event(self, logic: int, code: int, assertion: int, severity: int = 2, kind: int = 0) -> None:
        """Send an event: 0 recover, 1 occur, 2 once; other numbers are sent as well."""
        self._events.append(f"event {len(self._events) + 1} {logic} {code:X} {assertion} {severity} {kind}")
        self.save()

    def fail(
        self, function: str, code: int, *, card: int | None = None, device: int | None = None, kind: int = -1
    ) -> "contextlib.AbstractContextManager[None]":
        """Have a function return a code until the context ends, or permanently without a context.

        ``kind`` is what it is asked for, as in fake_dcmi.c; by default anything.
        """
        return self._rule(f"fail {_about(function, card, device)} {code} {kind}")

    def delay(
        self, function: str, seconds: float, *, card: int | None = None, device: int | None = None
    ) -> "contextlib.AbstractContextManager[None]":
        """Delay a function until the context ends, which also ends delayed calls."""
        return self._rule(f"delay {_about(function, card, device)} {round(seconds * 1000)}")

    def hang(
        self, function: str, *, card: int | None = None, device: int | None = None
    ) -> "contextlib.AbstractContextManager[None]":
        """Have a function never return, until the context ends."""
        return self.delay(function, FOREVER_S, card=card, device=device)

    def calls(self) -> dict[str, int]:
        """The number of calls of each function by all programs that use this fake."""
        return {name: count for name, count in self._counters().items() if name != "races"}

    def cuts(self) -> dict[int, tuple[int, str]]:
        """The vNPUs that programs have created: logic id of the chip and template, by id."""
        try:
            raw = self._state.with_name("cuts").read_bytes()
        except FileNotFoundError:
            return {}
        found = (each for each in _CUT.iter_unpack(raw) if each[0])
        return {vdev_id: (logic, template.rstrip(b"\0").decode()) for vdev_id, _, logic, template in found}

    def races(self) -> int:
        """How often a call was made during ``dcmi_init()``, or the other way round, by all programs."""
        return self._counters().get("races", 0)

    def _counters(self) -> dict[str, int]:
        try:
            raw = self._counts.read_bytes()
        except FileNotFoundError:
            return {}
        return {name.rstrip(b"\0").decode(): count for name, count in _COUNTER.iter_unpack(raw)}

    def _rule(self, rule: str) -> "contextlib.AbstractContextManager[None]":
        self._rules.insert(0, rule)  # the first match counts
        self.save()
        return self._ending(rule)

    @contextlib.contextmanager
    def _ending(self, rule: str) -> Iterator[None]:
        try:
            yield
        finally:
            self._rules.remove(rule)
            self.save()


def _about(function: str, card: int | None, device: int | None) -> str:
    return f"{function} {'*' if card is None else card} {'*' if device is None else device}"

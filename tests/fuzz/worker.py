"""Fuzzes one target in this process, guided by its coverage: `python -m tests.fuzz.worker TARGET OPTION …`."""

import sys
from random import Random

import atheris

with atheris.instrument_imports(include=["allocator", "ascend", "device_plugin", "npuctl"]):
    from tests.fuzz import targets

from tests.fuzz.mutation import mutate


def _change_bytes(data: bytes, most: int, _random: Random) -> bytes:
    return bytes(atheris.Mutate(data, most))


def _mutate(data: bytes, most: int, seed: int) -> bytes:
    return mutate(data, most, seed, _change_bytes)


name = sys.argv[1]
atheris.Setup([sys.argv[0], *sys.argv[2:]], lambda data: targets.run(name, data), custom_mutator=_mutate)
atheris.Fuzz()

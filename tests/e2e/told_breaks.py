"""``npuctl doctor --cluster`` has the line of a break's row until the break is mended.

The line is read from docs/failures.md, so the page says what doctor says.
"""

from typing import Final

from ascend.kube.objects import EVENTS
from npuctl.doctor.finding import Finding
from npuctl.doctor.told import OLD_S
from tests.e2e.lab import Break, Lab
from tests.e2e.test_doctor import diagnose
from tests.e2e.world import TIMEOUT_S
from tests.failure_rows import line_of

SLOW_S: Final = 120.0
"""How long doctor may take to tell what the device plugin looks for once a minute."""


async def check_break(what: str, made: Break, lab: Lab, *, within_s: float = TIMEOUT_S) -> None:
    """Make a break and check the line of its row, given by its first words, and that there is none afterwards."""
    line, world = line_of(what), lab.world

    async def told(in_s: int = 0) -> Finding | None:
        diagnosis = await diagnose(world, in_s=in_s)
        found = [each for each in diagnosis.findings if (each.check, each.severity) == (line.check, line.severity)]
        assert diagnosis.exit_status == (1 if diagnosis.problems else 0)
        return next((each for each in found if line.says in each.sentence or line.says == each.reason), None)

    # Those of breaks before say the same.
    await world.client.request("DELETE", EVENTS.path(namespace="default"))
    async with made(lab):
        found = await world.eventually(told, f"doctor says {line.says!r}", within_s)
        assert found.advice
    await world.clear()

    async def mended() -> bool:
        # An API server keeps Events for an hour. That of a certificate is repeated until this is renewed.
        is_gone = line.check == "events" or await told(OLD_S if line.check == "certificates" else 0) is None
        return is_gone and not (await diagnose(world)).problems

    await world.eventually(mended, "doctor is green again")

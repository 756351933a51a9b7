"""Fixtures of the allocator's tests."""

import asyncio

import pytest


@pytest.fixture(scope="session", autouse=True)
def _no_loop_of_looptime() -> None:
    # looptime asks the policy for a loop in synchronous tests too; unless told that there is none, the policy makes
    # one, which nobody closes: an unraisable ResourceWarning in whichever test the collector runs.
    asyncio.get_event_loop_policy().set_event_loop(None)

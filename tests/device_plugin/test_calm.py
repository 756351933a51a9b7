"""When chips without a fault may be read seldom."""

from device_plugin.state.calm import CALM_AFTER_S, DISTRUST_S, Calm


def test_there_is_no_calm_before_faults_are_announced() -> None:
    calm = Calm()
    assert not calm.holds(1e9)
    calm.announced = True
    assert calm.holds(0.0)


def test_it_is_calm_again_some_time_after_the_last_thing_that_happened() -> None:
    calm = Calm()
    calm.announced = True
    calm.stir(100.0)
    calm.stir(103.0)
    assert not calm.holds(102.9 + CALM_AFTER_S)
    assert calm.holds(103.0 + CALM_AFTER_S)


def test_a_missed_event_is_remembered_for_long() -> None:
    calm = Calm()
    calm.announced = True
    calm.miss(100.0)
    calm.stir(101.0)
    assert not calm.holds(99.9 + DISTRUST_S)
    assert calm.holds(100.0 + DISTRUST_S)

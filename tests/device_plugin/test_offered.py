"""A chip that comes back is offered once the kubelet has had time to show it; one that goes is gone at once."""

import math

from device_plugin.publish.order import AdvertisedChips


def test_at_the_start_what_the_kubelet_is_told_counts_at_once() -> None:
    offered = AdvertisedChips(1.5)
    assert offered.at(10.0, 0) == 0
    assert offered.at(11.0, 0xFF) == 0xFF
    assert offered.due_s == math.inf


def test_a_chip_that_comes_back_counts_after_the_lag_and_others_as_before() -> None:
    offered = AdvertisedChips(1.5)
    offered.at(10.0, 0b11)
    assert offered.at(20.0, 0b01) == 0b01
    assert offered.at(21.0, 0b11) == 0b01
    assert offered.due_s == 22.5
    assert offered.at(22.4, 0b11) == 0b01
    assert offered.at(22.5, 0b11) == 0b11
    assert offered.due_s == math.inf


def test_a_chip_that_goes_again_begins_anew() -> None:
    offered = AdvertisedChips(1.5)
    offered.at(10.0, 0b11)
    offered.at(20.0, 0b01)
    offered.at(21.0, 0b11)
    assert offered.at(21.5, 0b01) == 0b01
    assert offered.at(22.0, 0b11) == 0b01
    assert offered.at(23.0, 0b11) == 0b01
    assert offered.at(23.5, 0b11) == 0b11


def test_a_node_that_lost_all_its_chips_is_not_at_its_start_again() -> None:
    offered = AdvertisedChips(1.5)
    offered.at(10.0, 0b11)
    assert offered.at(11.0, 0) == 0
    assert offered.at(12.0, 0b11) == 0
    assert offered.at(13.5, 0b11) == 0b11

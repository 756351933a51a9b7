"""Numbers and articles in messages."""

import pytest

from ascend.grammar import a, count, some
from ascend.products import PRODUCTS


def test_a_noun_is_singular_only_after_1() -> None:
    assert [count(number, "chip") for number in (0, 1, 2)] == ["0 chips", "1 chip", "2 chips"]
    assert (count(1, "entry", "entries"), count(2, "entry", "entries")) == ("1 entry", "2 entries")


def test_of_many_names_the_first_are_listed() -> None:
    assert [some(list("abcde")[:number]) for number in (0, 1, 3, 5)] == ["", "a", "a, b, c", "a, b, c and 2 more"]


@pytest.mark.parametrize(
    "name",
    [
        "a 910A server",
        "a 910A-4 server",
        "a 910-card server",
        "a 910B-8 server",
        "a 910B-16 server",
        "an A3-8 server",
        "an A3-16 server",
        "an 850-8 server",
        "a mesh-8 server",
        "a mesh-16 server",
        "a plain-8 server",
        "a plain-16 server",
    ],
)
def test_every_product_has_the_right_article(name: str) -> None:
    product = name.split()[1]
    assert product in PRODUCTS
    assert a(f"{product} server") == name


def test_there_is_an_article_for_every_product() -> None:
    assert {a(name).split()[0] for name in PRODUCTS if name[0] not in "A8"} == {"a"}


@pytest.mark.parametrize(
    "name",
    [
        "an 8-chip request",
        "an 80 GB chip",
        "an 11th node",
        "an 18",
        "a 1-chip request",
        "a 180",
        "an NPU node",
        "an HCCS ring",
        "an API server",
        "a URL",
        "a vNPU",
        "a SuperPoD",
        "an Ascend910",
        "an Event",
        "an unhealthy chip",
        "a unit",
        "a uid",
        "a user",
        "a pod",
    ],
)
def test_the_article_depends_on_how_the_word_is_spoken(name: str) -> None:
    assert a(name.partition(" ")[2]) == name

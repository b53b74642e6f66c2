"""When a batch is due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.archive.model_config import BATCH_POLICIES
from relight.serving.batching import POLICIES, AdaptiveBatching, FixedBatching

NOW = 1000.0


def taught(size: int, max_delay: float, *batches: tuple[int, float, int]) -> AdaptiveBatching:
    policy = AdaptiveBatching(size, max_delay)
    for count, seconds, waiting in batches:
        policy.served(count, seconds, waiting)
    return policy


FULL_LOAD = [(8, 0.1, 8)] * 40
"""Batches of 8 that take 100 ms, with the next 8 waiting."""


def test_every_policy_of_the_configuration_is_there() -> None:
    assert set(POLICIES) == set(BATCH_POLICIES)
    assert {name: (POLICIES[name](4, 0.1).batch_size, POLICIES[name](4, 0.1).pipelines) for name in POLICIES} == {
        "adaptive": (4, True),
        "fixed": (4, False),
    }


@pytest.mark.parametrize(
    ("batches", "waiting", "due"),
    [
        pytest.param([], 1, True, id="nothing is known"),
        pytest.param([(1, 0.1, 0)] * 20, 1, True, id="single requests"),
        pytest.param([(1, 0.1, 0)] * 20, 3, True, id="more than usual"),
        pytest.param(FULL_LOAD, 8, True, id="full"),
        pytest.param(FULL_LOAD, 20, True, id="more than a batch"),
        pytest.param(FULL_LOAD, 7, False, id="one is missing"),
        pytest.param(FULL_LOAD, 1, False, id="seven are missing"),
        pytest.param([(3, 0.1, 0)] * 20, 3, True, id="as many as ever come"),
        pytest.param([(3, 0.1, 0)] * 20, 2, False, id="one of three is missing"),
        pytest.param([(8, 0.002, 8)] * 40, 1, True, id="batches are so short that waiting cannot pay"),
    ],
)
def test_adaptive(batches: list[tuple[int, float, int]], waiting: int, due: bool) -> None:
    policy = taught(8, 1.0, *batches)

    assert (policy.wait(waiting, NOW, NOW) <= 0) is due


def test_adaptive_lingers_for_a_small_part_of_a_batch() -> None:
    policy = taught(8, 1.0, *FULL_LOAD)

    assert policy.wait(1, NOW, NOW) == pytest.approx(0.015, rel=0.01)
    assert policy.wait(1, NOW - 0.010, NOW) == pytest.approx(0.005, rel=0.05)
    assert policy.wait(1, NOW - 0.016, NOW) <= 0


def test_adaptive_never_lingers_beyond_the_delay() -> None:
    policy = taught(8, 0.004, *FULL_LOAD)

    assert policy.wait(1, NOW, NOW) == pytest.approx(0.004)
    assert policy.wait(1, NOW - 0.004, NOW) <= 0


@pytest.mark.parametrize("max_delay", [0.0, -1.0])
def test_adaptive_without_a_delay_never_waits(max_delay: float) -> None:
    assert taught(8, max_delay, *FULL_LOAD).wait(1, NOW, NOW) <= 0


def test_adaptive_forgets_those_who_stay_away() -> None:
    policy = taught(8, 1.0, *FULL_LOAD)
    asked = 0

    while policy.wait(1, NOW, NOW) > 0:
        asked += 1
        assert policy.wait(1, NOW - 1.0, NOW) <= 0

    assert 1 <= asked <= 4


def test_adaptive_learns_from_smaller_batches() -> None:
    policy = taught(8, 1.0, *FULL_LOAD)

    for _ in range(30):
        policy.served(1, 0.1, 0)

    assert policy.wait(1, NOW, NOW) <= 0


@given(
    st.integers(1, 64),
    st.floats(0, 2),
    st.lists(st.tuples(st.integers(1, 64), st.floats(0, 10), st.integers(0, 200)), max_size=30),
    st.integers(1, 200),
    st.floats(0, 5),
)
def test_adaptive_bounds(
    size: int, max_delay: float, batches: list[tuple[int, float, int]], waiting: int, age: float
) -> None:
    policy = taught(size, max_delay, *((min(count, size), seconds, left) for count, seconds, left in batches))
    longest = max((seconds for _, seconds, _ in batches), default=0.0)

    wait = policy.wait(waiting, NOW - age, NOW)

    assert wait <= min(max_delay, 0.15 * longest) + 1e-9
    if waiting >= size:
        assert wait <= 0


@pytest.mark.parametrize(
    ("waiting", "age", "expected"),
    [
        pytest.param(1, 0.0, 0.1, id="the first"),
        pytest.param(7, 0.0, 0.1, id="nearly full"),
        pytest.param(8, 0.0, 0.0, id="full"),
        pytest.param(9, 0.0, 0.0, id="more than full"),
        # The time that it waited for a worker does not count (batching_and_llm.md §2.2).
        pytest.param(1, 60.0, 0.1, id="an old one"),
    ],
)
def test_fixed(waiting: int, age: float, expected: float) -> None:
    assert FixedBatching(8, 0.1).wait(waiting, NOW - age, NOW) == pytest.approx(expected)


def test_fixed_waits_once_for_a_batch() -> None:
    policy = FixedBatching(8, 0.1)

    waits = [policy.wait(1 + step, NOW, NOW + 0.04 * step) for step in range(4)]

    assert waits == pytest.approx([0.1, 0.06, 0.02, -0.02])
    assert policy.wait(1, NOW + 0.05, NOW + 0.2) == pytest.approx(0.1)


def test_fixed_starts_anew_after_a_full_batch() -> None:
    policy = FixedBatching(2, 0.1)
    policy.wait(1, NOW, NOW)
    policy.wait(2, NOW, NOW + 0.05)

    assert policy.wait(1, NOW + 0.06, NOW + 0.06) == pytest.approx(0.1)


def test_fixed_learns_nothing() -> None:
    policy = FixedBatching(8, 0.1)
    for _ in range(50):
        policy.served(1, 5.0, 0)

    assert policy.wait(1, NOW, NOW) == pytest.approx(0.1)


def test_fixed_waits_for_a_new_request_as_long_as_for_one_that_was_given_up() -> None:
    policy = FixedBatching(8, 0.1)
    assert policy.wait(1, NOW, NOW) == pytest.approx(0.1)
    # Its client leaves, nothing is sent, and nobody comes for a while.

    assert policy.wait(1, NOW + 10, NOW + 10) == pytest.approx(0.1)

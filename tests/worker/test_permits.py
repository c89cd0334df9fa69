"""Who may run how much, by exact numbers."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from awa_django.conf import QueueConfig
from awa_django.errors import ConfigurationError
from awa_django.worker.permits import Overflow, Permits, Reserved, Weighted, capacity, permits_for

A = QueueConfig("a", min_workers=2, weight=3)
B = QueueConfig("b", min_workers=0, weight=1)


class Wakes:
    """Counts its calls."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> None:
        self.count += 1


def take(permits: Permits, most: int, wake: Callable[[], None] | None = None) -> int:
    """A claim that finds as much as it may."""
    granted = permits.acquire(most, wake or Wakes())
    permits.use(granted)
    return granted


def release(permits: Permits, count: int) -> None:
    for _ in range(count):
        permits.release()


@pytest.fixture
def two() -> tuple[Permits, Permits]:
    """A: 2 of its own and weight 3; B: none and weight 1; together at most 10."""
    permits = permits_for([A, B], 10)
    return permits["a"], permits["b"]


# Permits of one queue --------------------------------------------------------------------------------------


def test_a_queue_gets_its_permits_and_no_more() -> None:
    permits = Reserved(3)
    wake = Wakes()
    assert permits.available(10) == 3
    assert take(permits, 2) == 2
    assert take(permits, 10, wake) == 1
    assert (permits.in_flight, permits.available(10), permits.overflow_held) == (3, 0, None)
    assert take(permits, 10, wake) == 0
    assert wake.count == 0
    permits.release()
    assert (wake.count, permits.in_flight) == (1, 2)
    permits.release()
    assert wake.count == 1, "once, until it has looked again"
    assert take(permits, 10) == 2


def test_permits_of_a_claim_are_in_flight_only_when_jobs_hold_them() -> None:
    for permits in (Reserved(4), permits_for([QueueConfig("q", min_workers=4)], 4)["q"]):
        wake = Wakes()
        assert permits.acquire(9, Wakes()) == 4
        assert permits.in_flight == 0
        assert permits.acquire(1, wake) == 0
        permits.use(1)
        permits.give_back(3)
        assert (permits.in_flight, permits.available(9), wake.count) == (1, 3, 1)


def test_a_queue_without_permits_gets_none() -> None:
    assert Reserved(0).acquire(5, Wakes()) == 0
    assert Reserved(0).most == 0


@pytest.mark.parametrize("global_max_workers", [None, 7])
def test_claimers_of_a_queue_never_hold_more_than_its_permits_together(
    global_max_workers: int | None,
) -> None:
    permits = permits_for([QueueConfig("q", max_workers=7, min_workers=3)], global_max_workers)["q"]
    lock = threading.Lock()
    held = most = 0

    def work() -> None:
        nonlocal held, most
        for _ in range(2000):
            granted = permits.acquire(3, Wakes())
            with lock:
                held += granted
                most = max(most, held)
            if granted:
                with lock:
                    held -= granted
                permits.use(granted - 1)
                permits.give_back(1)
                release(permits, granted - 1)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert 3 <= most <= 7
    assert (permits.in_flight, permits.available(99)) == (0, 7)


# Shares -------------------------------------------------------------------------------------------------------


def test_two_loaded_queues_settle_at_their_shares(two: tuple[Permits, Permits]) -> None:
    a, b = two
    # B came first and took the whole pool; A, with two of its own, borrows as B's jobs end.
    assert take(b, 50) == 8
    assert take(a, 50) == 2
    for _ in range(30):
        if b.in_flight > 2:
            b.release()
        take(b, 50)
        take(a, 50)
    assert (a.in_flight, b.in_flight) == (8, 2)
    assert (a.overflow_held, b.overflow_held) == (6, 2)
    # Loaded from the start it is the same.
    c, d = permits_for([A, B], 10).values()
    assert (take(c, 50), take(d, 50)) == (10, 0), "alone at first, the one takes everything"
    for _ in range(30):
        c.release()
        take(c, 50)
        take(d, 50)
    assert (c.in_flight, d.in_flight) == (8, 2)


def test_a_queue_alone_uses_the_whole_pool_and_the_other_still_has_its_own(
    two: tuple[Permits, Permits],
) -> None:
    a, b = two
    assert b.most == 8
    assert take(b, 100) == 8
    assert take(b, 100) == 0
    assert take(a, 100) == 2
    assert (a.overflow_held, b.overflow_held) == (0, 8)


def test_own_permits_are_taken_first_and_borrowed_ones_returned_first(two: tuple[Permits, Permits]) -> None:
    a, b = two
    assert take(a, 5) == 5
    assert (a.in_flight, a.overflow_held) == (5, 3)
    release(a, 2)
    assert (a.in_flight, a.overflow_held) == (3, 1)
    assert take(b, 100) == 2, "its share, while the other one holds anything"
    release(a, 3)
    assert (a.in_flight, a.overflow_held) == (0, 0)
    assert take(b, 100) == 0, "demand that was not met keeps a share for the one that had it"
    a.rest()
    assert take(b, 100) == 6


def test_what_is_held_above_a_share_that_shrank_stays_until_it_is_released() -> None:
    overflow = Overflow(8, {"a": 3, "b": 1})
    assert overflow.request("b", 20) == 8
    assert overflow.request("a", 20) == 0, "nothing is free"
    assert overflow.held == {"a": 0, "b": 8}
    for _ in range(6):
        overflow.give_back("b", 1)
        assert overflow.request("b", 20) == 0, "above its share of two"
    assert overflow.request("a", 20) == 6
    assert overflow.held == {"a": 6, "b": 2}


@pytest.mark.parametrize(
    ("total", "weights", "shares"),
    [
        (8, {"a": 3, "b": 1}, [6, 2]),
        (7, {"a": 1, "b": 1}, [4, 3]),  # ceil(3.5) to whoever asks first, what is left to the other
        (2, {"a": 1, "b": 1, "c": 1}, [1, 1, 0]),
        (10, {"a": 1, "b": 100}, [1, 9]),
        (0, {"a": 1, "b": 1}, [0, 0]),
        (9, {"a": 2, "b": 1}, [6, 3]),
    ],
)
def test_shares_are_rounded_up_and_never_exceed_what_is_free(
    total: int, weights: dict[str, int], shares: list[int]
) -> None:
    overflow = Overflow(total, weights)
    # All want something before any gets anything: a pool that is not there yet.
    overflow.total = 0
    for name in weights:
        overflow.request(name, 100)
    overflow.total = total
    assert [overflow.request(name, 100) for name in weights] == shares


def test_a_queue_gets_no_more_than_it_asks_for() -> None:
    overflow = Overflow(8, {"a": 1, "b": 1})
    assert overflow.request("a", 3) == 3
    assert overflow.request("a", 0) == 0
    assert overflow.free == 5
    assert overflow.request("b", 1) == 1


# Wake-ups ------------------------------------------------------------------------------------------------------


def test_a_queue_that_may_borrow_what_another_released_is_woken(two: tuple[Permits, Permits]) -> None:
    a, b = two
    wake_a, wake_b = Wakes(), Wakes()
    assert take(b, 100) == 8
    assert take(a, 100) == 2
    assert (take(a, 100, wake_a), take(b, 100, wake_b)) == (0, 0)
    b.release()
    assert (wake_a.count, wake_b.count) == (1, 0), "B is above its share"
    assert take(a, 100) == 1


def test_a_waiting_queue_hears_that_another_one_rests(two: tuple[Permits, Permits]) -> None:
    a, b = two
    wake = Wakes()
    assert take(b, 8) == 8
    assert take(a, 100) == 2
    assert take(b, 1, wake) == 0
    release(b, 6)
    assert wake.count == 0
    assert (b.in_flight, b.available(9)) == (2, 0)
    a.rest()
    assert wake.count == 1
    assert b.available(9) == 6


def test_freed_permits_of_its_own_wake_a_queue() -> None:
    permits = permits_for([QueueConfig("q", min_workers=2)], 2)["q"]
    wake = Wakes()
    assert take(permits, 5) == 2
    assert take(permits, 5, wake) == 0
    permits.release()
    assert wake.count == 1


# Whatever happens ----------------------------------------------------------------------------------------------


def test_the_books_agree_whatever_happens() -> None:
    """Never more than the global maximum, never less than what is guaranteed, and in the end everything is free."""
    random_numbers = random.Random(20)
    for _ in range(50):
        configs = [
            QueueConfig(
                str(number),
                min_workers=random_numbers.randint(0, 3),
                weight=random_numbers.choice([1, 1, 2, 5]),
            )
            for number in range(random_numbers.randint(1, 4))
        ]
        total = sum(config.min_workers for config in configs) + random_numbers.randint(0, 9)
        if not total:
            continue
        permits = permits_for(configs, total)
        for _ in range(300):
            config = random_numbers.choice(configs)
            mine = permits[config.name]
            match random_numbers.randint(0, 3):
                case 0 | 1:
                    most = random_numbers.randint(1, 12)
                    expected = mine.available(most)
                    before = mine.in_flight
                    got = take(mine, most)
                    assert got == expected
                    assert got >= min(most, config.min_workers - before)
                case 2 if mine.in_flight:
                    mine.release()
                case 3:
                    mine.rest()
            held = {name: item.in_flight for name, item in permits.items()}
            assert sum(held.values()) <= total
            for each in configs:
                assert permits[each.name].overflow_held == max(0, held[each.name] - each.min_workers)
        for item in permits.values():
            release(item, item.in_flight)
            item.rest()
        for item in permits.values():
            assert item.available(999) == item.most


# Configuration -------------------------------------------------------------------------------------------------


def test_without_a_global_maximum_each_queue_has_its_own() -> None:
    queues = [QueueConfig("a", max_workers=3), QueueConfig("b", max_workers=4)]
    assert {name: (type(item), item.most) for name, item in permits_for(queues, None).items()} == {
        "a": (Reserved, 3),
        "b": (Reserved, 4),
    }
    assert capacity(queues, None) == 7


def test_with_one_a_queue_may_reach_what_is_guaranteed_to_no_other() -> None:
    assert {name: (type(item), item.most) for name, item in permits_for([A, B], 10).items()} == {
        "a": (Weighted, 10),
        "b": (Weighted, 8),
    }
    assert capacity([A, B], 10) == 10
    assert capacity([], 10) == 0, "a process that only leads runs nothing"


def test_more_guaranteed_than_there_is_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"1 is less than the 2 jobs at once .*\(a 2\)"):
        permits_for([A, B], 1)

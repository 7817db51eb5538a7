"""Prices of several providers: all at once, and none waits for one that it does not use."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal

import core_facts as cf
import pytest

from orchestrator.asking import THREADS, Asking
from providers.base import Offer
from providers.errors import NoFunds


class World:
    """`good` answers; `hung` does so only once it is let go; `empty` has nothing; `broke` and `buggy` raise."""

    def __init__(self) -> None:
        self.go, self.arrived, self.called = threading.Event(), threading.Semaphore(0), list[str]()

    def offers(self, name: str) -> Sequence[Offer]:
        self.called.append(name)
        self.arrived.release()
        if name == "hung":
            assert self.go.wait(60)
        if name == "broke":
            raise NoFunds("no money left", provider=name)
        if name == "buggy":
            raise KeyError("price")
        return () if name == "empty" else (replace(cf.OFFER, provider=name, hourly=Decimal(1)),)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.go.set()


def ask(asking: Asking, world: World, *names: str) -> tuple[list[str], dict[str, str]]:
    offers, failed = asking.ask(names, world.offers)
    return [offer.provider for offer in offers], failed


def test_all_are_asked_at_the_same_time(world: World) -> None:
    both = threading.Barrier(2, timeout=60)

    def offers(name: str) -> Sequence[Offer]:
        both.wait()  # broken unless the other one is being asked too
        return world.offers(name)

    found, failed = Asking().ask(("good", "better"), offers)
    assert {offer.provider for offer in found} == {"good", "better"}
    assert failed == {}


def test_one_that_fails_or_has_a_bug_is_named_and_hides_no_other(world: World) -> None:
    found, failed = ask(Asking(), world, "broke", "good", "buggy")
    assert found == ["good"]
    assert failed == {"broke": "funds: no money left", "buggy": "a bug in the provider: KeyError: 'price'"}


def test_one_that_hangs_is_waited_for_once_and_then_left_out_until_it_answers(world: World) -> None:
    asking = Asking(answer_s=0.01)
    said = "ambiguous: no answer to offers within 0.01 s"
    assert ask(asking, world, "hung", "good") == (["good"], {"hung": said})
    assert ask(asking, world, "hung", "good") == (["good"], {"hung": said})
    assert world.called.count("hung") == 1, "a call that is still open is not added to"
    world.go.set()
    while ask(asking, world, "hung", "good")[1]:  # for ever, if it were left out for good
        pass


def test_who_has_nobody_else_waits_for_a_slow_answer(world: World) -> None:
    asking = Asking(answer_s=0.01)
    waiting = threading.Thread(target=lambda: found.append(ask(asking, world, "hung", "empty")))
    found: list[tuple[list[str], dict[str, str]]] = []
    waiting.start()
    for _ in range(2):
        world.arrived.acquire()
    waiting.join(0.1)
    assert found == [], "without any offer there is nothing to go on with"
    world.go.set()
    waiting.join(60)
    assert found == [(["hung"], {})]


def test_many_who_wait_for_one_provider_hold_up_nobody_who_does_not_use_it(world: World) -> None:
    asking = Asking()
    waiting = [threading.Thread(target=ask, args=(asking, world, "hung"), daemon=True) for _ in range(3 * THREADS)]
    for thread in waiting:
        thread.start()
    for _ in range(THREADS):
        world.arrived.acquire()
    assert ask(asking, world, "good") == (["good"], {})
    world.go.set()
    for thread in waiting:
        thread.join(60)

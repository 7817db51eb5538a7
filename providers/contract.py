"""The conformance suite: what every provider, built-in or plugin, must do for a job to be safe on it.

Use, under pytest or alone:

    world = Terms(make=lambda: MyProvider(config), deployment="contract", public_key=...)
    @pytest.mark.parametrize("check", CHECKS, ids=lambda c: c.__name__)
    def test_contract(check): check(world)

Rules
- Each check stands alone, rents at most four machines and gives them back whatever happens.
- A check fails with an AssertionError whose text is the broken sentence and what was seen.
- Real money: every machine carries a short end; run it against a sandbox account or accept some cents.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from decimal import Decimal

from providers.base import (
    Ask,
    Boot,
    DestroyAck,
    GpuRow,
    GpuWish,
    Instance,
    Offer,
    Provider,
    Ref,
    Tag,
)
from providers.errors import Refused

HOOK = "while :; do sleep 60; done"  # what a dead-man looks like to a provider: it never exits
END_S = 900.0  # a machine that a crashed check leaves behind ends itself after this
DEAD_WITHIN_S = 60.0  # an acknowledged destroy must show within this and the listing's lag


@dataclass
class Terms:
    """What the suite needs from a provider's author.

    `make` gives a fresh adapter on the same account each time it is called; `ask` finds the cheapest machine to
    test on; `gpus` is the table that the adapter was made with; `strangers` makes an adapter of another deployment
    on the same account, where one account can be shared; `pick` chooses among offers, for a provider on which one
    offer is one machine.
    """

    make: Callable[[], Provider]
    deployment: str
    public_key: str
    ask: Ask = field(default_factory=Ask)
    gpus: tuple[GpuRow, ...] = ()
    strangers: Callable[[], Provider] | None = None
    strangers_deployment: str = "someone-else"
    pick: Callable[[tuple[Offer, ...]], Offer] = lambda offers: min(offers, key=lambda offer: offer.hourly)
    poll_s: float = 0.05
    sleep: Callable[[float], None] = time.sleep

    def tag(self, deployment: str | None = None) -> Tag:
        """A tag that no other machine of this run has."""
        rental = f"contract-{os.urandom(5).hex()}"
        return Tag(deployment or self.deployment, rental, job="contract", owner="contract")

    def offer(self, provider: Provider) -> Offer:
        offers = provider.offers(self.ask)
        _must(offers, f"nothing is offered for {self.ask}: the suite has no machine to test on")
        return self.pick(offers)

    @contextlib.contextmanager
    def rented(self, provider: Provider, tag: Tag | None = None) -> Iterator[Instance]:
        """One machine for the length of a check."""
        instance = provider.create(
            self.offer(provider), tag or self.tag(), time.time() + END_S, Boot(HOOK, self.public_key)
        )
        try:
            yield instance
        finally:
            provider.destroy(instance.ref)

    def until(self, what: str, timeout_s: float, look: Callable[[], bool]) -> None:
        """Poll until `look` is true; fails with the sentence `what`."""
        tries = max(1, int(timeout_s / self.poll_s))
        for _ in range(tries):
            if look():
                return
            self.sleep(self.poll_s)
        raise AssertionError(f"{what}: not within {timeout_s:.0f} s")


def _must(holds: object, sentence: str) -> None:
    """An assertion that `python -O` keeps."""
    if not holds:
        raise AssertionError(sentence)


def _is_money(amount: object) -> bool:
    return isinstance(amount, Decimal)


def _seen(provider: Provider, ref: Ref, when: str) -> Instance:
    """The machine by a point-get; a machine that we hold must be known."""
    seen = provider.get(ref)
    if seen is None:
        raise AssertionError(f"get {when} knows no machine {ref}")
    return seen


def _refs(provider: Provider, region: str) -> dict[str, Instance]:
    return {instance.ref.id: instance for instance in provider.list(region).instances}


def _dead_or_gone(provider: Provider, ref: Ref) -> bool:
    seen = provider.get(ref)
    return seen is None or seen.status in provider.caps.dead_statuses


def caps_are_consistent(terms: Terms) -> None:
    """Caps must not promise what contradicts itself: they decide which timers bind."""
    caps = terms.make().caps
    _must(caps.dead_statuses, "dead_statuses is empty: no machine could ever be known to be dead")
    _must(caps.boot_hook in ("none", "once", "every_boot"), f"unknown boot_hook {caps.boot_hook!r}")
    _must(
        caps.self_end in ("destroys", "stops_all_billing", "leaves_disk", "nothing"),
        f"unknown self_end {caps.self_end!r}",
    )
    _must(caps.billing_step_s >= 1, f"billing_step_s is {caps.billing_step_s}: at least a second")
    _must(caps.list_lag_s >= 0 and caps.dead_listed_s >= 0, "a lag cannot be negative")
    _must(_is_money(caps.egress_per_gb), "egress_per_gb must be a Decimal")
    re.compile(caps.name_pattern)


def regions_are_stable_and_listable(terms: Terms) -> None:
    """Every region can be listed, also with nothing in it, and the names do not change between calls."""
    provider = terms.make()
    regions = provider.regions()
    _must(regions and len(set(regions)) == len(regions), f"regions() gave {regions}")
    _must(provider.regions() == regions, "regions() changed between two calls")
    for region in regions:
        listing = provider.list(region)
        _must(all(i.ref.region == region for i in listing.instances), f"list({region!r}) gave other regions")


def offers_satisfy_the_ask(terms: Terms) -> None:
    """An offer is at least what was asked, names this provider and has a positive price of a known currency."""
    provider = terms.make()
    asks = [terms.ask, Ask(cpus_min=1, spot=False)]
    for row in terms.gpus[:3]:
        asks += [Ask(gpus=(GpuWish(row.name, row.vram_gb, n),)) for n in (1, 2)]
    for ask in asks:
        for offer in provider.offers(ask):
            _must((offer.provider, offer.account) == (provider.name, provider.account), f"{offer} names another")
            _must(offer.region in provider.regions(), f"{offer.region!r} is not one of regions()")
            _must(_is_money(offer.hourly) and offer.hourly > 0, f"hourly is {offer.hourly!r}")
            _must(re.fullmatch(r"[A-Z]{3}", offer.currency), f"currency is {offer.currency!r}")
            _must(ask.spot is None or offer.spot == ask.spot, f"asked for spot={ask.spot}, got {offer}")
            _must(not ask.regions or offer.region in ask.regions, f"asked for {ask.regions}, got {offer}")
            _must(offer.cpus >= ask.cpus_min and offer.memory >= ask.memory_min, f"{ask} got {offer}")
            _must(offer.disk >= ask.disk_min, f"asked for {ask.disk_min} bytes of disk, got {offer}")
            wanted = {(wish.name, wish.count) for wish in ask.gpus} or {("", 0)}
            _must((offer.gpu, offer.gpu_count) in wanted, f"asked for {wanted}, got {offer}")


def spot_is_offered_only_where_caps_say(terms: Terms) -> None:
    provider = terms.make()
    spots = [offer for offer in provider.offers(terms.ask) if offer.spot]
    _must(provider.caps.spot or not spots, f"caps.spot is False, yet offered: {spots}")


def an_ask_nobody_can_meet_finds_nothing(terms: Terms) -> None:
    """No offer is an answer, not an error."""
    provider = terms.make()
    _must(provider.offers(Ask(cpus_min=10**6)) == (), "a machine with a million CPUs was offered")
    _must(provider.offers(Ask(gpus=(GpuWish("NO-SUCH-GPU", 1, 1),))) == (), "an unknown GPU was offered")
    _must(provider.offers(Ask(regions=("no-such-region",))) == (), "an unknown region was offered")


def create_carries_the_tag_into_list_and_get(terms: Terms) -> None:
    """The tag is how a machine is found again: by a point-get at once, by a listing within its lag."""
    provider = terms.make()
    tag = terms.tag()
    with terms.rented(provider, tag) as made:
        _must(made.tag == tag, f"create returned the tag {made.tag}")
        _must((made.ref.provider, made.ref.account) == (provider.name, provider.account), f"ref {made.ref}")
        seen = _seen(provider, made.ref, "right after create")
        _must(seen.tag == tag, f"get right after create gave the tag {seen.tag}")
        _must(seen.hourly is None or _is_money(seen.hourly), f"hourly is {seen.hourly!r}: Decimal or None")
        other = terms.make()  # another process's view
        terms.until(
            "create shows in list",
            provider.caps.list_lag_s + 5,
            lambda: made.ref.id in _refs(other, made.ref.region),
        )
        listed = _refs(other, made.ref.region)[made.ref.id]
        _must(listed.tag == tag, f"list gave the tag {listed.tag}")


def the_name_rule_is_honoured(terms: Terms) -> None:
    """A tag's name that the rule allows is accepted at its longest; what create made says so."""
    provider = terms.make()
    name = "c" + os.urandom(5).hex().ljust(39, "x")
    _must(re.fullmatch(provider.caps.name_pattern, name), f"name_pattern refuses {name!r}: 40 is usual")
    tag = Tag(terms.deployment, name, job="contract", owner="contract")
    with terms.rented(provider, tag) as made:
        _must(made.tag is not None and made.tag.name == name, f"{name!r} became {made.tag}")


def list_shows_only_our_deployment(terms: Terms) -> None:
    """Somebody else's machine in the same account is not ours to see in a listing, so never ours to touch."""
    if terms.strangers is None:
        return
    provider, stranger = terms.make(), terms.strangers()
    with terms.rented(stranger, terms.tag(terms.strangers_deployment)) as theirs:
        terms.until(
            "their machine shows in their list",
            stranger.caps.list_lag_s + 5,
            lambda: theirs.ref.id in _refs(stranger, theirs.ref.region),
        )
        _must(theirs.ref.id not in _refs(provider, theirs.ref.region), "another deployment's machine was listed")


def an_unknown_machine_is_none_and_missing(terms: Terms) -> None:
    """`get` says None, `destroy` says MISSING; neither raises."""
    provider = terms.make()
    unknown = Ref(provider.name, provider.account, provider.regions()[0], "no-such-machine-0")
    _must(provider.get(unknown) is None, "get of an unknown machine gave something")
    _must(provider.destroy(unknown) is DestroyAck.MISSING, "destroy of an unknown machine was acknowledged")


def a_destroyed_machine_is_soon_dead_and_destroy_repeats(terms: Terms) -> None:
    """Dead or gone within a bound, by get and by list; a second destroy harms nothing."""
    provider = terms.make()
    with terms.rented(provider) as made:
        _must(provider.destroy(made.ref) is DestroyAck.ACKNOWLEDGED, "destroy of our machine: not acknowledged")
        _must(provider.destroy(made.ref) in DestroyAck, "a second destroy must answer, not raise")
        terms.until(
            "a destroyed machine is dead or gone",
            DEAD_WITHIN_S + provider.caps.list_lag_s,
            lambda: _dead_or_gone(provider, made.ref),
        )
        listed = _refs(provider, made.ref.region).get(made.ref.id)
        _must(listed is None or listed.status in provider.caps.dead_statuses, f"list still says {listed}")
        seen = provider.get(made.ref)
        _must(seen is None or not seen.ready, "a dead machine is not ready")


def a_machine_becomes_ready_and_speaks_ssh(terms: Terms) -> None:
    """Within `caps.ready_within_s`: ready, with an endpoint that sends an SSH banner."""
    provider = terms.make()
    with terms.rented(provider) as made:

        def ready() -> bool:
            seen = _seen(provider, made.ref, "while it booted")
            _must(seen.status not in provider.caps.dead_statuses, f"it died while it booted: {seen}")
            return seen.ready and seen.endpoint is not None

        terms.until("the machine is ready", provider.caps.ready_within_s, ready)
        seen = _seen(provider, made.ref, "once ready")
        if seen.endpoint is None:
            raise AssertionError(f"ready, then without an endpoint: {seen}")
        with socket.create_connection((seen.endpoint.host, seen.endpoint.port), timeout=20) as connection:
            banner = connection.recv(64)
        _must(banner.startswith(b"SSH-2.0-"), f"the endpoint says {banner!r}")
        for key in seen.host_keys:
            _must(re.fullmatch(r"(ssh|ecdsa)-\S+ [A-Za-z0-9+/=]+", key), f"not a public key line: {key!r}")


def set_expiry_moves_the_end(terms: Terms) -> None:
    """Where the provider holds a timer, it tells the end, moves it both ways, and keeps it."""
    provider = terms.make()
    if not provider.caps.server_ttl:
        return
    with terms.rented(provider) as made:
        for at in (time.time() + END_S * 2, time.time() + END_S / 2):
            provider.set_expiry(made.ref, at)
            ends_at = _seen(provider, made.ref, "after set_expiry").ends_at
            if ends_at is None:
                raise AssertionError("server_ttl, but get tells no ends_at")
            _must(abs(ends_at - at) <= 60, f"moved the end to {at}, it says {ends_at}")


def the_providers_timer_ends_a_machine(terms: Terms) -> None:
    """An end in the past is carried out by the provider alone."""
    provider = terms.make()
    if not provider.caps.server_ttl:
        return
    with terms.rented(provider) as made:
        provider.set_expiry(made.ref, time.time() - 1)
        terms.until(
            "a machine past its end is dead or gone",
            DEAD_WITHIN_S + provider.caps.list_lag_s,
            lambda: _dead_or_gone(provider, made.ref),
        )


def four_creates_at_once_make_four_machines(terms: Terms) -> None:
    """One adapter, four threads: four ids, four tags, none lost."""
    provider = terms.make()
    tags = [terms.tag() for _ in range(4)]
    with contextlib.ExitStack() as rented, ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda tag: rented.enter_context(terms.rented(provider, tag)), tags))
        _must(len({one.ref.id for one in made}) == 4, f"four creates gave {[one.ref.id for one in made]}")
        regions = {one.ref.region for one in made}

        def shown() -> dict[str, Instance]:
            return {key: one for region in regions for key, one in _refs(provider, region).items()}

        terms.until(
            "all four show in list",
            provider.caps.list_lag_s + 10,
            lambda: {one.ref.id for one in made} <= set(shown()),
        )
        listed = shown()
        _must([listed[one.ref.id].tag for one in made] == tags, "a machine carries another one's tag")


def one_tag_twice_is_as_caps_say(terms: Terms) -> None:
    """The same tag sent twice makes one machine exactly where `idempotent_create` says so."""
    provider = terms.make()
    tag = terms.tag()
    with terms.rented(provider, tag) as first, terms.rented(provider, tag) as second:
        same = first.ref == second.ref
        _must(
            same == provider.caps.idempotent_create,
            f"idempotent_create is {provider.caps.idempotent_create}, two creates gave {first.ref} and {second.ref}",
        )


def an_impossible_offer_is_refused(terms: Terms) -> None:
    """An offer that does not exist is Refused, and then nothing was made."""
    provider = terms.make()
    offer, tag = terms.offer(provider), terms.tag()
    broken = Offer(**{**offer.__dict__, "key": "no-such-offer"})
    try:
        made = provider.create(broken, tag, time.time() + END_S, Boot(HOOK, terms.public_key))
    except Refused:
        pass  # as it should be; whether nothing was made is looked at below
    else:
        provider.destroy(made.ref)
        raise AssertionError(f"an offer that does not exist made {made}")
    _must(all(i.tag != tag for i in provider.list(offer.region).instances), "refused, and yet it is there")


CHECKS: tuple[Callable[[Terms], None], ...] = (
    caps_are_consistent,
    regions_are_stable_and_listable,
    offers_satisfy_the_ask,
    spot_is_offered_only_where_caps_say,
    an_ask_nobody_can_meet_finds_nothing,
    create_carries_the_tag_into_list_and_get,
    the_name_rule_is_honoured,
    list_shows_only_our_deployment,
    an_unknown_machine_is_none_and_missing,
    a_destroyed_machine_is_soon_dead_and_destroy_repeats,
    a_machine_becomes_ready_and_speaks_ssh,
    set_expiry_moves_the_end,
    the_providers_timer_ends_a_machine,
    four_creates_at_once_make_four_machines,
    one_tag_twice_is_as_caps_say,
    an_impossible_offer_is_refused,
)


def check_provider(terms: Terms) -> None:
    """All checks in order, for use without pytest; the first broken sentence is raised."""
    for check in CHECKS:
        check(terms)

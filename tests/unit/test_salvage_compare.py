"""What each thing in a listing is to the books, and the records that outlive them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

from cli_books import home_at
from core_facts import T0, instance, rental
from core_facts import job as job_row

from orchestrator.model import RentalPhase, Unknown
from orchestrator.records import job_record, keep_job, keep_rental, rental_record
from orchestrator.salvage import Found, Looked, compare, hourly, missing
from providers.base import Listing, Ref, Resource, Tag

OURS = "abcdef"


def looked(*things: object, **more: object) -> Looked:
    """One region with these machines and other things."""
    machines = tuple(t for t in things if not isinstance(t, Resource))
    others = tuple(t for t in things if isinstance(t, Resource))
    listing = Listing(machines, others)  # type: ignore[arg-type]
    return replace(Looked("prov", "acc", "r1", listing, dead_statuses=frozenset({"terminated"})), **more)  # type: ignore[arg-type]


def standing(found: tuple[Found, ...]) -> dict[str, str]:
    return {each.ref.id: each.standing for each in found}


def test_every_standing() -> None:
    rows = {r.id: r for r in (rental(1), rental(2, RentalPhase.GONE), rental(3, RentalPhase.RELEASING))}
    twin = replace(instance(1), ref=Ref("prov", "acc", "r1", "i-1b"))
    alien = replace(instance(9), tag=Tag("abcdeg", "gj-abcdeg-9"))
    found = compare([looked(instance(1), twin, instance(2), instance(3), instance(4), alien)], rows, OURS)
    assert standing(found) == {
        "i-1": "known",
        "i-1b": "duplicate",
        "i-2": "gone",
        "i-3": "known",
        "i-4": "unknown",
        "i-9": "stranger",
    }
    assert [each.standing for each in found][:2] == ["unknown", "gone"]  # what nobody sees to comes first


def test_what_is_dead_bills_nothing_and_what_has_no_tag_is_not_ours() -> None:
    bare = replace(instance(5), tag=None)
    found = compare([looked(instance(4, "terminated"), bare)], {}, OURS)
    assert standing(found) == {"i-5": "stranger"}


def test_a_dropped_tag_does_not_make_a_recorded_machine_a_stranger() -> None:
    found = compare([looked(replace(instance(1), tag=None))], {rental(1).id: rental(1)}, OURS)
    assert standing(found) == {"i-1": "known"}


def test_another_deployments_tag_with_our_rental_id_stays_a_stranger() -> None:
    """Its rental's name is equal by chance or on purpose: only our deployment's tag is ours."""
    alien = replace(instance(7), tag=Tag("abcdeg", rental(1).id))
    assert standing(compare([looked(alien)], {rental(1).id: rental(1)}, OURS)) == {"i-7": "stranger"}


def test_a_disk_left_behind_is_found_and_priced() -> None:
    disk = Resource(
        Ref("prov", "acc", "r1", "d-1", "disk"), "available", Tag(OURS, "gj-abcdef-8"), Decimal("0.02"), "USD"
    )
    found = compare([looked(disk)], {}, OURS)
    assert [(each.standing, each.ref.kind, each.hourly) for each in found] == [("unknown", "disk", Decimal("0.02"))]
    assert hourly(found) == {"USD": Decimal("0.02")}
    assert hourly(tuple(replace(each, play=True) for each in found)) == {}


def test_strangers_come_from_the_wider_listing_and_ours_are_not_counted_twice() -> None:
    alien = replace(instance(9), tag=Tag("abcdeg", "gj-abcdeg-9", owner="bob"))
    wide = Listing((instance(4), alien))
    found = compare([looked(instance(4), strangers=wide)], {}, OURS)
    assert standing(found) == {"i-4": "unknown", "i-9": "stranger"}
    assert next(each.owner for each in found if each.standing == "stranger") == "bob"


def test_only_a_complete_listing_makes_an_open_rental_missing() -> None:
    rows = {r.id: r for r in (rental(1), rental(2, RentalPhase.GONE))}
    empty, failed = looked(), looked(ours=Unknown("503"))
    assert [row.id for row in missing(compare([empty], rows, OURS), [empty], rows)] == [rental(1).id]
    assert missing(compare([failed], rows, OURS), [failed], rows) == ()
    seen = looked(instance(1))
    assert missing(compare([seen], rows, OURS), [seen], rows) == ()


def test_records_give_back_what_was_kept(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    wish = job_row(spec={"name": "j", "run": "true"}, price_cap=Decimal("1.50"), replaced_n=2, fresh=True)
    keep_job(home, replace(wish, cancel_at=T0, exit_code=1))
    keep_rental(home, rental(3))
    back = job_record(home, wish.id)
    assert back == replace(wish, first_rental_at=None)  # what became of it is for the books alone
    kept = rental_record(home, rental(3).id)
    assert kept is not None
    assert (kept.job, kept.attempt, kept.offer, kept.nonce) == (wish.id, 3, rental(3).offer, "nonce")
    mode = (home.rental(rental(3).id) / "rental.json").stat().st_mode & 0o777
    assert mode == 0o600


def test_a_damaged_or_foreign_record_is_none(tmp_path: Path) -> None:
    home = home_at(tmp_path)
    keep_job(home, job_row())
    path = home.job(job_row().id) / "job.json"
    (tmp_path / "job.json").write_text(path.read_text())
    assert job_record(home, "..") is None  # a tag comes from a provider
    assert job_record(home, "../jobs/" + job_row().id) is None
    home.job("other").mkdir(parents=True)
    (home.job("other") / "job.json").write_text(path.read_text())
    assert job_record(home, "other") is None  # another job's record
    path.write_text(path.read_text()[:40])
    assert job_record(home, job_row().id) is None
    assert rental_record(home, "gj-abcdef-1") is None

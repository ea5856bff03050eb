"""Aggregates, snapshots, upcasters and personal data."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.errors import EventIdReused, InvalidInput, UnknownEvent, UpcastFailed, WrongVersion
from millstream.events.store import EventStore

from .conftest import Open


class Cart(ms.Aggregate):
    snapshot_every = 3

    def __init__(self) -> None:
        self.items: dict[str, int] = {}
        self.handled = 0

    def add(self, item: str, count: int = 1) -> None:
        if count < 1:
            raise ValueError("nothing to add")
        self.record("ItemAdded", item=item, count=count)

    def put_back(self, item: str) -> None:
        if item not in self.items:
            raise ValueError(f"there is no {item}")
        self.record(ms.Event("ItemPutBack", {"item": item}))

    @ms.event("ItemAdded")
    def _added(self, item: str, count: int) -> None:
        self.items[item] = self.items.get(item, 0) + count
        self.handled += 1

    @ms.event("ItemPutBack", "ItemExpired")
    def _removed(self, event: Any) -> None:
        self.items.pop(event.data["item"])
        self.handled += 1


def test_commands_decide_and_events_change(store: EventStore) -> None:
    cart = store.load(Cart, "c1")
    cart.add("tea", 2)
    cart.add("milk")
    cart.put_back("tea")
    with pytest.raises(ValueError, match="no tea"):
        cart.put_back("tea")
    assert (cart.items, cart.version, len(cart.pending)) == ({"milk": 1}, 3, 3)
    assert store.version("c1") == 0
    saved = store.save(cart)
    assert saved is not None
    assert saved.version == 3
    assert store.save(cart) is None
    assert store.load(Cart, "c1").items == {"milk": 1}
    assert [event.type for event in store.read("c1")] == ["ItemAdded", "ItemAdded", "ItemPutBack"]


def test_an_aggregate_is_rebuilt_as_of_any_version_and_time(store: EventStore) -> None:
    for item in ("tea", "milk", "bread", "jam"):
        store.execute(Cart, "c1", lambda cart, item=item: cart.add(item))
    assert [len(store.load(Cart, "c1", version=version).items) for version in range(6)] == [0, 1, 2, 3, 4, 4]
    times = [event.at for event in store.read("c1")]
    assert list(store.load(Cart, "c1", at=times[1]).items)[:2] == ["tea", "milk"]
    assert store.load(Cart, "c1", at=times[0] - timedelta(seconds=1)).items == {}
    with pytest.raises(InvalidInput):
        store.load(Cart, "c1", at=times[0].replace(tzinfo=None))


def test_one_of_two_writers_decides_again(store: EventStore) -> None:
    mine, other = store.load(Cart, "c1"), store.load(Cart, "c1")
    other.add("tea")
    store.save(other)
    mine.add("milk")
    with pytest.raises(WrongVersion):
        store.save(mine)
    tries = []

    def add(cart: Cart) -> int:
        if not tries:
            store.append("c1", ms.Event("ItemAdded", {"item": "jam", "count": 1}))
        tries.append(cart.version)
        cart.add("milk")
        return len(cart.items)

    assert store.execute(Cart, "c1", add) == 3
    assert tries == [1, 2]


def test_a_snapshot_saves_reading_the_events_before_it(open_store: Open) -> None:
    store = open_store()
    for number in range(7):
        store.execute(Cart, "c1", lambda cart, number=number: cart.add(f"item{number}"))
    with store._turn:
        assert [found[0] if found else None for found in
                (store._index.snapshot(Cart.snapshot_kind(), "c1", version) for version in range(8))
                ] == [None, None, None, 3, 3, 3, 6, 6]  # fmt: skip
    loaded = store.load(Cart, "c1")
    assert (loaded.version, loaded.handled, len(loaded.items)) == (7, 7, 7)
    store._index.save_snapshot(Cart.snapshot_kind(), "c1", 6, 0, b'{"items": {"other": 1}, "handled": 0}')
    assert store.load(Cart, "c1").items == {"other": 1, "item6": 1}
    assert len(store.load(Cart, "c1", version=2).items) == 2

    class Changed(Cart):
        snapshot_format = 2

    assert len(store.load(Changed, "c1").items) == 7


def test_an_aggregate_of_a_stream_that_keeps_its_last_events_can_be_saved(store: EventStore) -> None:
    store.append("c1", [ms.Event("ItemAdded", {"item": f"{number}", "count": 1}) for number in range(4)])
    store.keep("c1", last=2)
    store.execute(Cart, "c1", lambda cart: cart.add("tea"), retries=0)
    assert list(store.load(Cart, "c1").items) == ["3", "tea"]


def test_an_event_without_a_handler_is_reported(store: EventStore) -> None:
    store.append("c1", [ms.Event("ItemAdded", {"item": "tea", "count": 1}), ms.Event("Painted")])
    with pytest.raises(UnknownEvent, match="Cart has no handler for 'Painted'") as unknown:
        store.load(Cart, "c1")
    assert unknown.value.where == "stream 'c1', version 2"
    with pytest.raises(UnknownEvent):
        store.load(Cart, "c1", version=1).record("Painted")
    assert store.load(Cart, "c1", version=1).items == {"tea": 1}


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"item": "tea", "count": 1, "color": "red"}, "unexpected keyword argument 'color'"),
        ({"count": 1}, "missing a required argument: 'item'"),
    ],
)
def test_fields_that_a_handler_does_not_take_are_reported(
    store: EventStore, fields: dict[str, Any], problem: str
) -> None:
    store.append("c1", [ms.Event("ItemAdded", {"item": "tea", "count": 1}), ms.Event("ItemAdded", fields)])
    with pytest.raises(UnknownEvent, match=f"handler of 'ItemAdded' in Cart does not take .*{problem}") as unknown:
        store.load(Cart, "c1")
    assert unknown.value.where == "stream 'c1', version 2"
    assert store.load(Cart, "c1", version=1).items == {"tea": 1}


def test_two_handlers_of_one_type_are_refused() -> None:
    with pytest.raises(InvalidInput, match="two handlers"):

        class Twice(ms.Aggregate):
            @ms.event("A")
            def _one(self) -> None: ...

            @ms.event("A")
            def _two(self) -> None: ...

    with pytest.raises(InvalidInput, match="snapshot_every of Never"):

        class Never(ms.Aggregate):
            snapshot_every = 0

    with pytest.raises(InvalidInput, match="needs the type"):
        ms.event()


# ---------------------------------------------------------------- upcasters


@ms.upcaster("Renamed", from_format=1)
def split_name(data: dict[str, Any]) -> dict[str, Any]:
    first, _, last = data["name"].partition(" ")
    return {"first": first, "last": last}


@ms.upcaster("Renamed", from_format=2)
def with_title(data: dict[str, Any]) -> dict[str, Any]:
    return {**data, "title": None}


def test_old_formats_are_brought_up_to_date(open_store: Open) -> None:
    open_store().append("ann", ms.Event("Renamed", {"name": "Ann Lee"}))
    open_store(upcasters=[split_name]).append("ann", ms.Event("Renamed", {"first": "Ann", "last": "Low"}))
    store = open_store(upcasters=[with_title, split_name])
    store.append("ann", ms.Event("Renamed", {"first": "A", "last": "B", "title": "Dr"}))
    expected = [("Lee", None), ("Low", None), ("B", "Dr")]
    assert [(event.data["last"], event.data["title"]) for event in store.read("ann")] == expected
    assert [(event.data["last"], event.data["title"]) for event in store.read_all()] == expected
    with store.subscribe() as subscription:
        assert [event.data["last"] for _, event in zip(range(3), subscription, strict=False)] == ["Lee", "Low", "B"]


def test_an_upcaster_that_fails_is_reported(open_store: Open) -> None:
    open_store().append("ann", ms.Event("Renamed", {}))
    with pytest.raises(UpcastFailed, match="KeyError") as failed:
        list(open_store(upcasters=[split_name]).read("ann"))
    assert "stream 'ann', version 1" in str(failed.value.where)
    nothing = ms.upcaster("Renamed")(lambda data: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(UpcastFailed, match="not a dict"):
        list(open_store(upcasters=[nothing]).read("ann"))
    assert len(list(open_store().read("ann"))) == 1


def test_upcasters_without_a_predecessor_are_refused(open_store: Open) -> None:
    for wrong in ([with_title], [split_name, split_name], [len]):
        with pytest.raises(InvalidInput):
            open_store(upcasters=wrong)


# ---------------------------------------------------------------- personal data


def test_a_forgotten_person_cannot_be_read_again(open_store: Open, tmp_path: Path) -> None:
    store = open_store(keys=tmp_path / "keys")

    def registered(subject: str, mail: str) -> ms.Event:
        return ms.Event("Registered", {"mail": mail, "plan": "basic"}, subject=subject, personal=["mail"])

    ann = registered("ann", "ann@example.org")
    store.append("ann", ann)
    store.append("bob", registered("bob", "bob@example.org"))
    (event,) = store.read("ann")
    assert (event.data, event.subject, event.is_forgotten) == (
        {"mail": "ann@example.org", "plan": "basic"}, "ann", False,
    )  # fmt: skip
    assert store.append("ann", ann).is_repeated  # encrypted differently, and yet the same
    with pytest.raises(EventIdReused):
        store.append("ann", replace(ann, data={"mail": "ann@example.org", "plan": "large"}))
    assert store.forget("ann")
    assert not store.forget("ann")
    for each in (store, open_store(keys=tmp_path / "keys")):
        (event,) = each.read("ann")
        assert (event.data, event.is_forgotten) == ({"mail": None, "plan": "basic"}, True)
        assert [event.data["mail"] for event in each.read_all()] == [None, "bob@example.org"]
    store.append("ann", registered("ann", "new@example.org"))
    assert [event.data["mail"] for event in store.read("ann")] == [None, "new@example.org"]
    assert b"ann@example.org" not in b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())


def test_personal_data_is_in_no_snapshot(open_store: Open, tmp_path: Path) -> None:
    class Person(ms.Aggregate):
        snapshot_every = 1

        def __init__(self) -> None:
            self.mail: str | None = None

        @ms.event("Registered")
        def _registered(self, mail: str | None) -> None:
            self.mail = mail

    store = open_store(keys=tmp_path / "keys")
    event = ms.Event("Registered", {"mail": "ann@example.org"}, subject="ann", personal=["mail"])
    store.execute(Person, "ann", lambda person: person.record(event))
    assert store.load(Person, "ann").mail == "ann@example.org"
    with pytest.raises(InvalidInput, match="personal data"):
        store.snapshot(store.load(Person, "ann"))
    store.forget("ann")
    assert store.load(Person, "ann").mail is None


def test_personal_data_needs_keys_and_a_subject(open_store: Open, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="need a subject"):
        ms.Event("Registered", {"mail": "x"}, personal=["mail"])
    with pytest.raises(InvalidInput, match="no keys"):
        open_store().append("a", ms.Event("Registered", {"mail": "x"}, subject="a", personal=["mail"]))
    with pytest.raises(InvalidInput, match="no field 'phone'"):
        open_store(keys=tmp_path / "keys").append(
            "a", ms.Event("Registered", {"mail": "x"}, subject="a", personal=["phone"])
        )
    assert (tmp_path / "keys").stat().st_mode & 0o077 == 0

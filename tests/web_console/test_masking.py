"""Planted values of masked columns: topics, planes, answers, dead letters, logs and bundles show none of them."""

from __future__ import annotations

import io
import json
import zipfile
from http.client import HTTPConnection
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

import pytest

import millstream as ms
from millstream.plan.shown import masks
from millstream.records import DEAD_LETTER_SCHEMA
from millstream.supervision.mask import SIGN
from millstream.supervision.specification import JobSpecification
from millstream.supervision.store import Observed
from provenance.recorded import Batch, at, record
from waiting import until

from .axe import violations
from .conftest import Console
from .flows import planned_in
from .pictures import picture
from .test_time_plane import flow_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

SCHEMA = "email string, score int, at timestamp"
ANN, BOB, CARD = "ann@example.org", "bob@example.org", "4111 1111 1111 1111"
PLANTED = (ANN, BOB, CARD, "example.org")
FLOW = f"""
import millstream as ms

ms.mask("email", "card_*")
flow = ms.Flow("spending")
orders = flow.read("orders", "{SCHEMA}", event_time="at", watermark=ms.bounded("10 seconds"), name="orders")
totals = orders.key_by("email").window(ms.fixed("1 minute")).agg(total=ms.sum("score"))
totals.write("totals")
totals.late.write("late_orders")
orders.dead.write("orders.dead")
"""
BROKEN = [json.dumps({"email": ANN, "score": ANN}).encode(), f"{BOB};12".encode(), f'{{"email": "{ANN}", "s'.encode()]


def order(email: str, score: int, seconds: float) -> bytes:
    return json.dumps({"email": email, "score": score, "at": at(seconds).isoformat()}).encode()


def planted(console: Console, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A job with masked columns and secrets in all that it reads and writes; the headers of a browser."""
    monkeypatch.setattr(masks, "_masked", {})
    file = console.log.parent / "flow.py"
    file.write_text(FLOW)
    with ms.connect(console.log) as log:
        log.create_topic("orders", partitions=1)
        log.create_topic("customers", partitions=1, schema="email string, city string, card_number string")
        log.create_topic("orders.dead", partitions=1, schema=DEAD_LETTER_SCHEMA)
        with log.producer() as producer:
            row = {"email": ANN, "city": f"Ulm, see {ANN}", "card_number": CARD}
            producer.send("customers", row, ANN, headers={"email": ANN.encode(), "about": f"of {ANN}".encode()})
            producer.send("customers", None, BOB)
    batches = [
        Batch(1, {0: [order(ANN, 1, 1), order(BOB, 2, 5), *BROKEN]}),
        Batch(80, {0: [order(ANN, 3, 79)]}),
        Batch(82, {0: [order(BOB, 4, 6)]}),
    ]
    record(console.log, "spending", "orders", "orders", batches)
    with ms.connect(console.log) as log, log.producer() as producer:
        reasons = [
            f"column 'score': expected int, found \"{ANN}\"",
            f"expected a JSON object, found {BOB};12",
            "no JSON",
        ]
        for number, reason in enumerate(reasons):
            origin = {"value": BROKEN[number], "topic": "orders", "partition": 0, "offset": 2 + number}
            producer.send("orders.dead", {**origin, "reason": reason, "at": at(2)})
    job = JobSpecification("spending", str(file), "spending", folder=str(console.log.parent))
    console.supervisor.store.add(job, "ann", Observed.STOPPED, None)
    planned_in(console, flow_of(FLOW))
    number = console.supervisor.store.begin_run("spending", "start")
    console.supervisor.store.end_run("spending", number, 1, f"the row email={ANN} cannot be written")
    printed = console.supervisor.drivers.folder / "spending" / "runs" / "1" / "log.txt"
    printed.parent.mkdir(parents=True)
    printed.write_text(f"writes {{'email': '{ANN}', 'score': 1}}\nerror: card_number={CARD.replace(' ', '')}\n")
    return console.logged_in()


def asked(console: Console, session: dict[str, str], path: str, body: Any = None) -> Any:
    given = None if body is None else json.dumps(body)
    status, _, answer = console.ask("GET" if body is None else "POST", path, given, **session)
    assert status == 200, answer
    assert not [each for each in (*PLANTED, "41111111") if each in json.dumps(answer, ensure_ascii=False)], answer
    return answer


def test_no_page_shows_a_masked_value(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    session = planted(console, monkeypatch)
    deleted, customer = asked(console, session, "/v1/topics/customers/records")["records"]
    assert customer["value"]["email"].startswith(SIGN)
    assert customer["value"]["city"] == f"Ulm, see {customer['value']['email']}"
    assert customer["key"] == customer["value"]["email"]
    assert deleted["key"].startswith(SIGN)
    history = asked(console, session, f"/v1/topics/customers/records?{urlencode({'key': customer['key']})}")
    assert [each["offset"] for each in history["records"]] == [0]
    orders = asked(console, session, "/v1/topics/orders/records?limit=100")["records"]
    assert len(orders) == 7
    assert json.loads(orders[0]["value"])["score"] == 4
    letters = asked(console, session, "/v1/dead-letters/orders.dead")
    assert [each["value"].startswith(SIGN) for each in letters["letters"]] == [True, True, False]
    asked(console, session, "/v1/topics/orders.dead/records")
    for path in ("/v1/jobs", "/v1/jobs/spending", "/v1/jobs/spending/runs", "/v1/jobs/spending/plan"):
        asked(console, session, path)
    assert "'score': 1" in asked(console, session, "/v1/jobs/spending/logs")["text"]


def test_a_masked_column_is_not_searched(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    session = planted(console, monkeypatch)
    for what in ("records", "histogram"):
        path = f"/v1/topics/customers/{what}?"
        assert asked(console, session, path + urlencode({"text": "ann@"})).get("found", 0) == 0
        assert asked(console, session, path + urlencode({"where": "city like 'Ulm%'"}))
        for where in ("email like 'a%'", "to_json(struct(email)) like '%a%'", "`Email` = 'x'"):
            status, _, answer = console.ask("GET", path + urlencode({"where": where}), **session)
            assert status == 400
            assert "is masked" in answer["error"]["what"]


def test_a_bundle_has_no_masked_value(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    session = planted(console, monkeypatch)
    connection = HTTPConnection("127.0.0.1", console.port)
    connection.request("GET", "/v1/bundle", headers={"Cookie": session["Cookie"]})
    with zipfile.ZipFile(io.BytesIO(connection.getresponse().read())) as made:
        files = {name: made.read(name).decode() for name in made.namelist()}
    connection.close()
    assert "writes" in files["jobs/spending/runs/1.log"]
    assert not [name for name, text in files.items() if any(each in text for each in PLANTED)]


@pytest.mark.more
def test_a_plane_and_its_answers_show_no_masked_value(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    session = planted(console, monkeypatch)
    path = "/v1/jobs/spending/plane?offset=0"
    batches = until(
        lambda: asked(console, session, path)["batches"][2:] and asked(console, session, path)["batches"], "all batches"
    )
    keys = {row[1] for batch in batches for row in batch["rows"]}
    assert len(keys) == 2
    assert all(key.startswith(SIGN) for key in keys)
    panes = [pane for batch in batches for pane in batch["panes"]]
    assert len(panes) == 2
    for pane in panes:
        question = pane[6]
        why = asked(console, session, f"/v1/jobs/spending/why?{urlencode({'pane': json.dumps(question)})}")
        assert why["key"]["email"] == pane[4]
        assert why["pane"]["total"] == int(pane[5])
        assert why["rows"]
    late = next(row for batch in batches for row in batch["late"])
    late_answer = asked(console, session, f"/v1/jobs/spending/why?{urlencode({'late': json.dumps(late[2])})}")
    assert late_answer["steps"][0]["row"]["score"] == 4
    dead = urlencode({"dead": json.dumps(["orders", 0, 2])})
    assert asked(console, session, f"/v1/jobs/spending/why?{dead}")["reason"]
    asked(console, session, "/v1/dead-letters/orders.dead/rehearse", {"job": "spending"})
    refused = {
        "a test would contain values of masked columns: email": urlencode({"late": json.dumps(late[2]), "test": 1}),
        "is not known any more": urlencode({"pane": json.dumps({"email": SIGN + "00", "window": "x"})}),
    }
    for what, query in refused.items():
        status, _, answer = console.ask("GET", f"/v1/jobs/spending/why?{query}", **session)
        assert status in (400, 404)
        assert what in answer["error"]["what"]


@pytest.mark.more
def test_masked_values_in_the_browser(console: Console, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    planted(console, monkeypatch)
    for address, text in {
        "topics/customers": "Ulm, see",
        "topics/orders": "score",
        "dead-letters/orders.dead": "By reason",
        "jobs/spending/log": "writes",
        "jobs/spending/plane": "batch 2",
    }.items():
        page.goto(f"{console.url}/console/#/{address}")
        page.get_by_text(text).first.wait_for()
        assert not [each for each in PLANTED if each in page.content()], address
    picture(page, "masked-plane")
    assert violations(page) == []
    page.goto(f"{console.url}/console/#/topics/customers")
    page.get_by_role("button", name="0/0").click()
    page.get_by_role("region", name="Record", exact=True).get_by_text(SIGN).first.wait_for()
    picture(page, "masked-topic")
    assert violations(page) == []
    assert not [each for each in PLANTED if each in page.content()]

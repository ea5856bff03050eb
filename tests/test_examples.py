"""The demo and the examples do what they say: each is run, and what it prints is computed here once more by hand."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import chess
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import millstream as ms
from alerts.receivers import mail_server
from debian_servers import MISSING, program
from example_files import EXAMPLES, cells, load, rows_of
from millstream.errors import InvalidInput
from millstream.plan.shown import dashboards
from postgres_server import Server
from waiting import until

Run = Callable[..., tuple[ModuleType, str]]


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str], spark: SparkSession) -> Iterator[Run]:
    """Runs the main of an example on a log in `tmp_path`; gives the example, and what it printed."""
    loaded: list[ModuleType] = []

    def run_main(name: str, *given: Any) -> tuple[ModuleType, str]:
        module = load(name)
        cloudpickle.register_pickle_by_value(module)  # workers cannot import it; of __main__ they need not
        loaded.append(module)
        module.main(str(tmp_path), *given)
        return module, capsys.readouterr().out

    yield run_main
    for module in loaded:
        cloudpickle.unregister_pickle_by_value(module)
        del sys.modules[module.__name__]


@pytest.mark.soak
@pytest.mark.own_processes
@pytest.mark.timeout(600)
def test_a_factory_is_watched_upgraded_and_reported_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    load("factory").main(str(tmp_path))
    first, link, *others = capsys.readouterr().out.splitlines()
    assert re.search(r"http://127\.0\.0\.1:\d+/console/#code=[^/]+/dashboards/factory$", link)
    assert [first, *others] == [
        "the report runs every night, next at 03:00 UTC",
        "mail: the lathe is too hot",
        "rehearsed: 1 row the same, 2 more with the new condition",
        "upgraded; mail: the oven has stopped",
        "report: drill, 1 readings, up to 20 degrees",
        "report: lathe, 2 readings, up to 97 degrees",
        "report: oven, 1 readings, up to 18 degrees",
        "report: press, 2 readings, up to 84 degrees",
        "stopped, with a savepoint",
    ]


def test_the_dashboard_of_the_factory_shows_what_its_flow_reads_and_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboards, "_built", {})
    module = load("factory")
    code = module.WATCH.format(condition="heat > 90", port=25)
    found: dict[str, Any] = {}
    exec(code.replace('read("machines",', f'read("machines", "{module.SCHEMA}",'), found)
    columns = module.SCHEMA.replace(",", "").split()[::2]  # the flow filters rows: those of both topics are the same
    [made] = dashboards.built_dashboards()
    assert {each.topic for each in made.panels} == {"machines", "urgent"}
    assert {name for each in made.panels for name in (each.x, each.y, *each.columns) if name} <= set(columns)


@pytest.mark.more
def test_every_line_of_a_device_goes_where_it_belongs(run: Run, tmp_path: Path) -> None:
    _, printed = run("data_flow")
    urgent = [("fan-1", "", "2", "stopped"), ("pump-2", "south", "3", "bearing at 92 degrees")]
    others = [("fan-2", "", "6", "speed 1200"), ("pump-1", "north", "6", "started")]
    assert cells(printed) == [
        *(("urgent", *row) for row in urgent),
        *(("files", *row) for row in sorted([*urgent, *others])),
        ("repaired", "pump-2", "", "4", "pressure low"),
        ("failures", "", "", "", "<4>pump-2[17]: pressure low"),
        ("failures", "", "", "", '{"device": "pump-1", "level": "high"}'),
        ("unknown", "", "", "", "reboot"),
    ]


@pytest.mark.more
def test_the_average_is_that_of_all_rows_and_is_updated_by_new_ones(run: Run, tmp_path: Path) -> None:
    _, printed = run("average_of_topic")
    assert "after 1,000 readings" in printed
    assert "after 10 more" in printed
    rows = rows_of(tmp_path, "temperatures")
    expected = []
    for some in (rows[:1000], rows):
        for place in ("cellar", "kitchen", "study", "the house"):
            values = [row["celsius"] for row in some if place in (row["room"], "the house")]
            expected.append((place, f"{sum(values) / len(values):.3f} °C", f"{len(values):,}"))
    assert cells(printed) == expected


def test_errors_are_kept_and_invalid_lines_become_dead_letters(run: Run) -> None:
    _, printed = run("web_log_filter")
    rows = cells(printed)
    assert rows[:2] == [
        ("12:00:02", "192.0.2.9", "ann", "/orders/17", "500"),
        ("12:00:06", "192.0.2.9", "ann", "/orders/17", "503"),
    ]
    assert [row[0] for row in rows[2:] if row[0]] == ["3", "6"]
    assert "not a line of an access log" in rows[2][1]
    assert "32/Jan/2026" in printed


@pytest.mark.more
def test_rates_are_clicks_by_views_of_a_minute(run: Run, tmp_path: Path) -> None:
    _, printed = run("click_through_rate")
    counted: dict[str, Counter[tuple[str, str]]] = {}
    for topic in ("views", "clicks"):
        counted[topic] = Counter((f"{row['at']:%H:%M}", row["ad"]) for row in rows_of(tmp_path, topic))
    expected = []
    for minute, ad in sorted(counted["views"] | counted["clicks"]):
        views, clicks = counted["views"][minute, ad], counted["clicks"][minute, ad]
        expected.append((minute, ad, str(views), str(clicks), f"{clicks / views:.1%}" if views else ""))
    assert len(expected) > 9  # some clicks fall into a fourth minute
    assert cells(printed) == expected


@pytest.mark.more
def test_sessions_are_joined_by_a_late_click(run: Run) -> None:
    module, printed = run("user_sessions")
    gap, visits = timedelta(minutes=15), defaultdict[str, list[list[tuple[datetime, str]]]](list)
    for minute, user, page in sorted(module.CLICKS):
        at = module.MORNING + timedelta(minutes=minute)
        if not visits[user] or at - visits[user][-1][-1][0] > gap:
            visits[user].append([])
        visits[user][-1].append((at, page))
    expected = [
        (user, f"{visit[0][0]:%H:%M}", f"{visit[-1][0]:%H:%M}", str(len(visit)), visit[0][1], visit[-1][1])
        for user in sorted(visits)
        for visit in visits[user]
    ]
    # Bob's last visit is not over: nothing has been seen that is 15 minutes later.
    assert cells(printed) == expected[:-1]


@pytest.mark.more
def test_alerts_come_for_heat_that_lasts_and_for_silence(run: Run) -> None:
    _, printed = run("device_monitoring")
    assert cells(printed) == [
        ("12:03:40", "fan", "silent since 12:01:40"),
        ("12:04:00", "pump", "3 times hotter than 80 °C: 95 °C"),
        ("12:08:20", "fan", "back"),
    ]


@pytest.mark.more
def test_searches_count_once_and_as_clicked_if_that_was_within_the_hour(run: Run, tmp_path: Path) -> None:
    _, printed = run("click_through")
    searches, clicks = rows_of(tmp_path, "searches"), rows_of(tmp_path, "clicks")
    for rows in (searches, clicks):
        assert [row["at"] for row in rows] != sorted(row["at"] for row in rows)
    clicked_at = defaultdict[int, list[datetime]](list)
    for click in clicks:
        clicked_at[click["search"]].append(click["at"])
    counted, clicked = Counter[str](), Counter[str]()
    for search in searches:
        within = [at for at in clicked_at[search["search"]] if at - search["at"] <= timedelta(hours=1)]
        counted.update(search["words"].split())
        clicked.update(search["words"].split() if within else [])
    expected = sorted((-clicked[word] / counted[word], word) for word in counted)
    assert cells(printed) == [(word, str(counted[word]), str(clicked[word]), f"{-rate:.1%}") for rate, word in expected]


@pytest.mark.more
def test_two_writes_disagree_and_others_do_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], server: Server
) -> None:
    load("dual_writes").main(str(tmp_path), server.new_database(), server.new_database())
    shown = [row for row in cells(capsys.readouterr().out) if len(row) == 4]
    assert [row[-1] for row in shown] == ["they disagree", "equal", "equal", "equal"]
    assert shown[0][1:3] == ('{"milk": 1.0, "tea": 5.0}', '{"milk": 1.0, "tea": 4.0}')
    assert [row[1] for row in shown[1:3]] == ['{"milk": 2.0, "tea": 7.0}', '{"milk": 3.0, "tea": 9.0}']
    assert shown[-1][1] == '{"milk": 3.0, "tea": 7.0}'


@pytest.mark.more
def test_two_lines_of_a_feed_are_merged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A busy machine may lose more datagrams than the example does: all that is stored or missing adds up."""
    feed = load("market_feed")
    try:
        feed.datagram_socket(feed.HOST, 0, feed.GROUPS[0]).close()
    except InvalidInput as error:
        pytest.skip(f"this machine has no multicast: {error.what}")
    feed.main(str(tmp_path))
    found = dict(cells(capsys.readouterr().out))
    stored, missing = int(found["stored"]), int(found["lost on both lines"])
    assert stored + missing == feed.QUOTES
    assert missing >= len(feed.LOST_ON_BOTH)
    assert int(found["orders sent"]) > 0


@pytest.mark.more
@pytest.mark.timeout(900)
def test_a_tank_is_controlled_and_protects_itself_without_a_broker(run: Run) -> None:
    """The valve opens below and closes above the set points of its part, and is closed while the broker is dead."""
    if not program("mosquitto"):
        pytest.skip(MISSING.format("mosquitto"))
    module, printed = run("process_control")
    rows = cells(printed)
    moves = [row for row in rows if len(row) == 3]
    limits = {"set points 40 to 60": module.FIRST_POINTS, "changed to 20 to 30": module.CHANGED_POINTS}
    for part, (low, high) in limits.items():
        found = [(inlet, float(level)) for name, inlet, level in moves if name == part]
        assert {inlet for inlet, _ in found} == {"open", "closed"}
        assert all(level < low if inlet == "open" else level > high for inlet, level in found), found
    assert {inlet for name, inlet, _ in moves if name.startswith("after")} == {"open", "closed"}
    (safe,) = [inlet for name, inlet, _ in moves if name == "the broker is dead"]
    assert safe == "closed by the tank itself"
    assert [name for name, _ in [row for row in rows if len(row) == 2]] == ["shortest", "median", "longest"]


@pytest.mark.more
def test_clicks_find_the_plan_of_their_time_and_of_now_in_a_captured_database(run: Run) -> None:
    _, printed = run("profiles_of_a_database")
    assert cells(printed) == [
        ("ann", "/news", "free", "paid"),
        ("ann", "/weather", "free", "paid"),
        ("ann", "/films", "paid", "paid"),
    ]


@pytest.mark.more
def test_activity_finds_the_profile_of_its_time_whatever_comes_first(run: Run) -> None:
    module, printed = run("enrichment")
    profiles, expected = [], []
    for more, activity in (
        (module.FIRST_PROFILES, module.FIRST_ACTIVITY),
        (module.MORE_PROFILES, module.MORE_ACTIVITY),
    ):
        profiles += more
        expected += [(minute, user, page, plan_of(profiles, user)) for minute, user, page in activity]
    rows = []
    for minute, user, page, known in sorted(expected)[:-1]:
        plan = plan_of([profile for profile in profiles if profile[0] <= minute], user)
        at = f"{module.NOON + timedelta(minutes=minute):%H:%M}"
        rows.append((at, user, page, plan, known, "" if plan == known else "differs"))
    assert [row[-1] for row in rows].count("differs") == 2
    assert cells(printed) == rows


def plan_of(profiles: list[tuple[int, str, str]], whose: str) -> str:
    """The newest that is known; empty if none is."""
    return max(((minute, plan) for minute, user, plan in profiles if user == whose), default=(0, ""))[1]


@pytest.mark.more
def test_timelines_have_followed_users_and_no_deleted_posts(run: Run) -> None:
    module, printed = run("timelines")
    posts: dict[int, tuple[int, str, str | None]] = {}
    follows: dict[tuple[str, str], bool] = {}
    expected = []
    for more_posts, more_follows in (
        (module.FIRST_POSTS, module.FIRST_FOLLOWS),
        (module.MORE_POSTS, module.MORE_FOLLOWS),
    ):
        posts |= {post: (minute, author, text) for minute, post, author, text in more_posts}
        follows |= {(follower, followee): is_following for _, follower, followee, is_following in more_follows}
        for reader in ("dan", "eve"):
            seen = [post for post in posts.values() if post[2] is not None and follows.get((reader, post[1]))]
            for place, (minute, author, text) in enumerate(sorted(seen, reverse=True)[:3], start=1):
                expected.append((reader, str(place), f"12:{minute:02}", author, text))
    assert cells(printed) == expected


@pytest.mark.more
def test_the_board_of_the_table_is_that_of_the_game(run: Run, tmp_path: Path) -> None:
    module, printed = run("chess_board")
    changes = rows_of(tmp_path, "board.changes")
    game = chess.Board()
    for number, move in enumerate([None, *module.MOVES]):
        if move is not None:
            game.push_san(move)
        pieces = {chess.square_name(square): piece.symbol() for square, piece in game.piece_map().items()}
        # The sum of the changes up to a move's time, and no piece too many on the way.
        held = Counter[tuple[str, str]]()
        for change in changes:
            if change["event_time"] <= module.time_of(number):
                held[change["square"], change["piece"]] += change["weight"]
        assert {key: count for key, count in held.items() if count} == dict.fromkeys(pieces.items(), 1)
        assert module.replayed(changes, module.time_of(number)) == pieces
        topic = {module.CASTLED: "board.castled", len(module.MOVES): "board"}.get(number)
        if topic is not None:
            with ms.connect(tmp_path) as log, log.consumer(topic) as consumer:
                newest = {record.key: record.value for record in consumer.until_caught_up()}
            assert {row["square"]: row["piece"] for row in newest.values() if row is not None} == pieces
            for line in str(game).splitlines():
                assert (line, line) in [(row[0], row[-1]) for row in cells(printed)]
    assert game.is_checkmate()
    assert f"{len(changes)} changes" in printed


@pytest.mark.more
def test_a_card_whose_use_changes_is_found_and_reports_are_withdrawn_when_the_average_changes(run: Run) -> None:
    module, printed = run("fraud")
    payments: dict[int, tuple[str, float]] = {}
    reported: set[int] = set()
    expected = []
    for came in (module.FIRST, module.MORE + module.LATER):
        before = dict(payments)
        payments |= {payment: (card, amount) for payment, card, _, amount in came}
        payments = {payment: paid for payment, paid in payments.items() if paid[1] is not None}
        high = set()
        for payment, (card, amount) in payments.items():
            amounts = [paid for whose, paid in payments.values() if whose == card]
            if len(amounts) >= 5 and amount > 3 * sum(amounts) / len(amounts):
                high.add(payment)
        for payment in sorted(high ^ reported):
            what, (card, amount) = (
                ("reported", payments[payment]) if payment in high else ("withdrawn", before[payment])
            )
            expected.append((str(payment), card, f"{amount:,.2f}", what))
        reported = high
    assert [row[-1] for row in expected].count("withdrawn") == 2
    *reports, alarm = cells(printed)
    assert reports == expected
    assert alarm == ("cid", "17", "BR", "300.00", "5")  # five small payments in Spain, then a large one in Brazil


@pytest.mark.more
def test_an_intruder_is_tracked_across_logs(run: Run) -> None:
    """One guesses, scans and sends; one does not send enough within the hour; the others lack guesses or a scan."""
    _, printed = run("intruder")
    assert cells(printed) == [("10.0.0.7", "root", "700", "3", "3", "02:40"), ("10.0.0.8", "bob", "02:06")]


@pytest.mark.more
def test_orders_follow_rules_that_are_changed_while_the_job_runs(run: Run) -> None:
    _, printed = run("trading")
    rows = cells(printed)
    assert rows[:9] == [  # what the rules found
        ("12:03", "ACME", "buy a dip", "1", "47.00"),
        ("12:03", "BOLT", "sell a peak", "1", "33.00"),
        ("12:06", "ACME", "sell a peak", "1", "50.00"),
        ("12:06", "BOLT", "buy a dip", "1", "30.00"),
        ("12:13", "ACME", "buy a dip", "2", "49.00"),
        ("12:13", "BOLT", "buy a dip", "2", "29.00"),
        ("12:14", "ACME", "sell a peak", "2", "50.00"),
        ("12:17", "ACME", "sell a peak", "2", "53.00"),
        ("12:17", "BOLT", "buy a dip", "2", "27.00"),
    ]
    assert rows[9:] == [  # what was executed
        ("12:03", "ACME", "bought", "10", "47.00"),
        ("12:06", "ACME", "sold", "10", "50.00"),
        ("12:06", "BOLT", "bought", "10", "30.00"),
        ("12:13", "ACME", "bought", "10", "49.00"),
        ("12:13", "BOLT", "bought", "10", "29.00"),
        ("12:14", "ACME", "sold", "10", "50.00"),
        ("12:17", "BOLT", "bought", "10", "27.00"),
    ]
    assert "line 1, column" in printed
    assert "prize" in printed


@pytest.mark.more
def test_saved_searches_find_news_while_they_change(run: Run) -> None:
    with mail_server() as (received, port):
        _, printed = run("media_monitoring", f"127.0.0.1:{port}")
        everybody = {"ann@example.org", "bob@example.org", "cyd@example.org"}
        until(lambda: {mail["To"] for mail in received.mails} == everybody, "mail for everybody")
    assert cells(printed) == [
        ("ann", "energy", "12:01", "Daily", "<em>Solar</em> <em>power</em> is cheaper than ever"),
        ("cyd", "big news", "12:02", "Herald", "Acme recalls its anvils"),
        ("bob", "rivals", "12:02", "Herald", "<em>Acme</em> <em>recalls</em> its anvils"),
        ("cyd", "big news", "12:11", "Daily", "Lawsuits against Acme"),
        ("bob", "rivals", "12:11", "Daily", "<em>Lawsuits</em> against <em>Acme</em>"),
        ("cyd", "big news", "12:13", "Daily", "Strong wind, strong turbine"),
    ]
    assert "column 1: there is no field 'titel' to search" in printed


@pytest.mark.more
def test_a_machine_is_odd_before_it_fails(run: Run) -> None:
    _, printed = run("machine_anomalies")
    assert cells(printed) == [
        ("15:30", "lathe", "71.0", "63.2", "12.9", "13%"),
        ("15:40", "lathe", "71.9", "63.6", "5.6", "72%"),
    ]


@pytest.mark.more
def test_visits_are_grouped_and_programs_fit_no_group(run: Run) -> None:
    _, printed = run("click_clusters")
    assert cells(printed) == [("613", "4.0", "180"), ("655", "12.0", "60"), ("656", "25.1", "20")]
    assert re.findall(r"visitor (\d+) is odd", printed) == ["1000", "1500"]


@pytest.mark.more
def test_the_reach_of_a_link_is_that_of_all_who_posted_it(run: Run) -> None:
    _, printed = run("reach")
    assert cells(printed) == [("/tea", "4"), ("/cake", "2"), ("/soup", "0"), ("/cake, later", "3")]


@pytest.mark.more
def test_money_that_accounts_send_is_neither_lost_nor_made(run: Run) -> None:
    _, printed = run("accounts")
    assert re.findall(r"200 accounts hold ([\d,]+) after ([\d,]+) orders", printed) == [
        ("20,000", "1,000"),
        ("20,000", "2,000"),
    ]


@pytest.mark.more
@pytest.mark.own_processes
def test_an_example_runs_by_its_command() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / "web_log_filter.py")], capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    assert "/orders/17" in done.stdout


def test_lines_of_the_dashboard_are_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The flow without Spark: what the web server writes is parsed, counted, or a dead letter."""
    monkeypatch.setattr(dashboards, "_built", {})
    module, chance = load("web_log_dashboard"), random.Random(7)
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    lines = [module.line(chance, start + timedelta(seconds=number / 40)) for number in range(2000)]
    good = [line for line in lines if "restarted" not in line]
    requests = [module.request({"line": line}) for line in good]
    assert 0 < len(good) < len(lines)
    with pytest.raises(ValueError, match="not a request"):
        module.request({"line": next(line for line in lines if "restarted" in line)})
    assert {each["path"] for each in requests} == set(module.PATHS)
    assert [each["at"] for each in requests] == sorted(each["at"] for each in requests)
    assert {each.topic for each in dashboards.built_dashboards()[0].panels} <= {
        node.sink.broker_topic for node in module.flow.check()
    }


@pytest.mark.more
@pytest.mark.parametrize("broker", ["embedded", "kafka"])
def test_what_was_put_back_is_still_known(run: Run, broker: str, request: pytest.FixtureRequest) -> None:
    module, printed = run("shopping_cart", *on(broker, request))
    steps = [step for visit in module.VISITS.values() for step in visit]
    added, back = (Counter(item for step, item in steps if step == name) for name in ("add", "put_back"))
    expected = [(item, str(added[item] - back[item])) for item in sorted(added)]
    assert cells(printed) == expected + [(item, str(back[item])) for item in sorted(back)]
    assert "Bob's cart now: jam\n" in printed
    assert "when he had put the honey back: empty\n" in printed
    assert "after his first step: honey\n" in printed


def on(broker: str, request: pytest.FixtureRequest) -> list[str]:
    """The address of a broker, if it is not the folder of the test."""
    return [f"kafka://{request.getfixturevalue('kafka').bootstrap}"] if broker == "kafka" else []


@pytest.mark.parametrize("broker", ["embedded", pytest.param("kafka", marks=pytest.mark.more)])
def test_every_seat_is_reserved_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], broker: str, request: pytest.FixtureRequest
) -> None:
    load("seats").main(*(on(broker, request) or [str(tmp_path)]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1:] == ["20 reservations of 20 seats", "20 customers have a seat, 20 have none"]

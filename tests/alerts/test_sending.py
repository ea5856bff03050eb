"""Alerts arrive at real servers: grouped, again after a failure, and a failing target is reported to the others."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import millstream as ms
from millstream.alerts import outbox as outboxes
from millstream.alerts.message import Message, together
from millstream.alerts.outbox import Outbox, read_health
from millstream.alerts.sender import FAILURES_REPORTED, Sender
from millstream.alerts.settings import read_settings
from millstream.alerts.targets import Target
from millstream.errors import AlertNotSent, InvalidInput
from millstream.secrets import Secret
from millstream.webhooks.signatures import Verifier

from .receivers import Mails, Requests, http_server, mail_server

ALERT = Message("firing", "scores: lag_s > 60", "It is 75.\nLook: …", 1.0, "scores", "lag_s > 60")


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    made = Outbox(tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="module")
def mail() -> Iterator[tuple[Mails, int]]:
    with mail_server() as found:
        yield found


@pytest.fixture
def hook() -> Iterator[tuple[Requests, str]]:
    with http_server() as found:
        yield found


def test_a_mail_arrives(mail: tuple[Mails, int]) -> None:
    mails, port = mail
    mails.mails.clear()
    target = ms.email("ops@example.org", "b@example.org", host="127.0.0.1", port=port, security="none")
    target.send(together([ALERT]))
    (got,) = mails.mails
    assert (got["Subject"], got["To"]) == ("scores: lag_s > 60", "ops@example.org, b@example.org")
    assert got.get_content().splitlines()[0] == "It is 75."
    mails.refuses = True
    with pytest.raises(AlertNotSent, match="451"):
        target.send(together([ALERT]))
    mails.refuses = False


def test_a_title_cannot_add_headers(mail: tuple[Mails, int]) -> None:
    mails, port = mail
    mails.mails.clear()
    hostile = Message("rows", "hello\r\nBcc: evil@example.org", "text", 1.0)
    ms.email("ops@example.org", host="127.0.0.1", port=port, security="none").send(together([hostile]))
    assert mails.mails[0]["Subject"] == "hello Bcc: evil@example.org"
    assert mails.mails[0]["Bcc"] is None


def test_a_webhook_is_signed(hook: tuple[Requests, str]) -> None:
    requests, url = hook
    target = ms.webhook(url, secret="hush")
    target.send(together([ALERT, ALERT]))
    ((headers, body),) = requests.received
    encoded = {name.lower().encode(): value.encode() for name, value in headers.items()}
    assert Verifier("standard", [Secret("hush")]).check(encoded, body)
    assert [each["job"] for each in json.loads(body)["alerts"]] == ["scores", "scores"]
    assert "hunter2" not in f"{target} {target!r}"
    requests.status = 500
    with pytest.raises(AlertNotSent, match="answers with status 500") as raised:
        target.send(together([ALERT]))
    assert "hunter2" not in str(raised.value)


def test_a_chat(hook: tuple[Requests, str]) -> None:
    requests, url = hook
    ms.slack(url).send(together([ALERT]))
    assert requests.documents == [{"text": "*scores: lag_s > 60*\nIt is 75.\nLook: …"}]


def test_a_command(tmp_path: Path) -> None:
    ms.command("sh", "-c", f"cat > {tmp_path}/got").send(together([ALERT]))
    assert json.loads((tmp_path / "got").read_text())["title"] == "scores: lag_s > 60"
    with pytest.raises(AlertNotSent, match="exit code 3: no luck"):
        ms.command("sh", "-c", "echo no luck >&2; exit 3").send(together([ALERT]))
    with pytest.raises(AlertNotSent, match="FileNotFoundError"):
        ms.command("/nowhere/program").send(together([ALERT]))


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: ms.email(host="h"), "needs a recipient"),
        (lambda: ms.email("ops\r\nBcc: x@y", host="h"), "not an email address"),
        (lambda: ms.email("a@b", host="h", password="p", user="u", security="none"), "in the clear"),
        (lambda: ms.email("a@b", host="h", security="some"), "security='some'"),  # type: ignore[arg-type]
        (lambda: ms.webhook("ftp://example.org"), "not the URL"),
        (lambda: ms.slack("example.org"), "not the URL"),
        (lambda: ms.command(), "a program"),
    ],
)
def test_targets_that_are_refused(make: Any, what: str) -> None:
    with pytest.raises(InvalidInput, match=what) as raised:
        make()
    assert "test_sending.py" in str(raised.value.where)


def test_targets_are_pickled_without_their_secrets() -> None:
    target = ms.email("a@b", host="h", user="u", password="hunter2")
    packed = pickle.dumps(target)
    assert b"hunter2" not in packed
    assert pickle.loads(packed) == target


# ---------------------------------------------------------------- the outbox


class Recording(Target):
    def __init__(self) -> None:
        self.got: list[Any] = []
        self.is_down = False

    def send(self, notification: Any) -> None:
        if self.is_down:
            raise AlertNotSent("nobody answers")
        self.got.append([each.title for each in notification.messages])


def message(title: str) -> Message:
    return Message("firing", title, "", 0.0)


def test_messages_that_are_due_are_sent_together(outbox: Outbox) -> None:
    target = Recording()
    sender = Sender(outbox, lambda: {"ops": target})
    outbox.put("ops", message("a"), 10.0)
    outbox.put("ops", message("b"), 12.0)
    outbox.put("ops", message("c"), 99.0)
    assert sender.send_due(9.0) == 0
    assert sender.send_due(12.0) == 1
    assert target.got == [["a", "b"]]
    assert sender.send_due(12.0) == 0
    assert outbox.count() == 1


def test_a_target_that_fails_is_tried_again_and_reported(outbox: Outbox, tmp_path: Path) -> None:
    down, other = Recording(), Recording()
    down.is_down = True
    sender = Sender(outbox, lambda: {"down": down, "other": other})
    outbox.put("down", message("a"), 0.0)
    now = 0.0
    for _ in range(FAILURES_REPORTED):
        sender.send_due(now)
        now += 1000
    assert read_health(tmp_path)["down"].failures == FAILURES_REPORTED
    assert read_health(tmp_path)["down"].failing_since == 0.0
    sender.send_due(now)
    assert other.got == [["Alerts to 'down' cannot be sent"]], "once"
    down.is_down = False
    sender.send_due(now + 1000)
    sender.send_due(now + 1000)
    assert down.got == [["a"]]
    assert other.got[1:] == [["Alerts to 'down' are sent again"]]
    assert read_health(tmp_path)["down"].failures == 0


def test_a_target_that_fails_unexpectedly_is_reported_too(outbox: Outbox, tmp_path: Path) -> None:
    class Broken(Target):
        def send(self, notification: Any) -> None:
            raise ValueError("a header with a line break")

    outbox.put("broken", message("a"), 0.0)
    assert Sender(outbox, lambda: {"broken": Broken()}).send_due(1.0) == 0
    assert read_health(tmp_path)["broken"].error == "ValueError: a header with a line break"


def test_what_was_accepted_survives(tmp_path: Path) -> None:
    first = Outbox(tmp_path)
    first.put("ops", message("a"), 0.0)
    first.close()
    again, target = Outbox(tmp_path), Recording()
    Sender(again, lambda: {"ops": target}).send_due(1.0)
    assert target.got == [["a"]]
    again.close()


def test_the_outbox_is_bounded(outbox: Outbox, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outboxes, "MESSAGES_MAX", 3)
    for number in range(5):
        outbox.put("ops", message(str(number)), 0.0)
    target = Recording()
    Sender(outbox, lambda: {"ops": target}).send_due(1.0)
    assert target.got == [["2", "3", "4"]]


def test_what_was_seen_is_not_new_for_a_while(outbox: Outbox) -> None:
    assert outbox.is_new("a", 0.0, 10.0)
    assert not outbox.is_new("a", 9.0, 10.0)
    assert outbox.is_new("a", 10.0, 10.0)


# ---------------------------------------------------------------- the file


SETTINGS = """
[targets.ops]
kind = "email"
to = "ops@example.org"
host = "localhost"
security = "none"

[targets.log]
kind = "command"
arguments = ["logger"]

[[rules]]
when = "lag_seconds > 60 for 5 minutes"
jobs = ["team-*"]
to = ["log"]
quiet = "22:00-07:00 Europe/Berlin"
repeat = "4 hours"

[[rules]]
when = "state == failed"
"""


def test_settings(tmp_path: Path) -> None:
    path = tmp_path / "alerts.toml"
    assert read_settings(path).targets == {}
    path.write_text(SETTINGS)
    path.chmod(0o644)
    found = read_settings(path)
    assert list(found.targets) == ["ops", "log"]
    path.chmod(0o666)
    with pytest.raises(InvalidInput, match="other users can change"):
        read_settings(path)
    lag, failed = found.rules
    assert (lag.repeat_s, lag.jobs, found.recipients(lag)) == (14_400.0, ("team-*",), ["log"])
    assert (lag.applies_to("team-a"), lag.applies_to("other")) == (True, False)
    assert found.recipients(failed) == ["ops", "log"]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("targets = ", "Invalid value"),
        ("[target.ops]", "there is no 'target'"),
        ("[targets.ops]\nkind = 'mail'", "the kind of the target 'ops'"),
        ("[targets.ops]\nkind = 'email'\nto = 'a@b'", "missing 1 required"),
        ("[targets.ops]\nkind = 'email'\nto = 3\nhost = 'h'", "not a text"),
        ("[[rules]]\nwhen = 'lag > 3 for'", "not a rule"),
        ("[[rules]]\nwhen = 'lag_s > 3'\nto = ['ops']", "no target 'ops'"),
        ("[[rules]]\nwhen = 'lag_s > 3'\nif = 'x'", "a rule has no 'if'"),
        ("[targets.a]\nkind = 'slack'\nurl = 'https://example.org/x'", "other users can read"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "alerts.toml"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(InvalidInput, match=what) as raised:
        read_settings(path)
    assert raised.value.where == str(path)


def test_a_limit_groups_what_comes_too_early(outbox: Outbox, hook: tuple[Requests, str]) -> None:
    requests, url = hook
    target = ms.webhook(url, limit="2 per minute")
    sender = Sender(outbox, lambda: {"hook": target})
    for second in range(10):
        outbox.put("hook", ALERT, second)
        sender.send_due(second)
    assert len(requests.received) == 2
    sender.send_due(59.0)
    assert len(requests.received) == 2
    sender.send_due(60.0)
    assert [len(document["alerts"]) for document in requests.documents] == [1, 1, 8]


def test_a_push_gateway_gets_its_own_fields(hook: tuple[Requests, str]) -> None:
    requests, url = hook
    message = {"priority": "high", "message": "{title}: {text}"}
    ms.push(url, message).send(together([ALERT]))
    assert requests.documents[0] == {
        "priority": "high",
        "message": "scores: lag_s > 60: It is 75.\nLook: …",
    }
    ms.push(url, "{title}", encoding="text").send(together([ALERT]))
    assert requests.received[1][1] == b"scores: lag_s > 60"
    stream = ms.Flow("f").read("scores", "team string, score int")
    with pytest.raises(InvalidInput, match="no 'phone'"):
        ms.alert(stream, to=ms.push(url, {"to": "{phone}"}))

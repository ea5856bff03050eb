"""Everything that the console adds to the supervisor's HTTP interface, and the application with both."""

from __future__ import annotations

from millstream.serving.access import Access
from millstream.supervision.alerting import Alerting
from millstream.supervision.http import app
from millstream.supervision.status import Status
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.front_door import FrontDoor
from millstream.web_console.plans import plan_route


def with_console(
    supervisor: Supervisor,
    status: Status,
    access: Access,
    token: str,
    url: str,
    user: str,
    alerting: Alerting | None = None,
) -> FrontDoor:
    """The application that `millstream up` serves. `user` is the owner of the token."""
    interface = app(supervisor, status, access, user, alerting=alerting, more=[plan_route(status)])
    return FrontDoor(interface, access, token, url, user)

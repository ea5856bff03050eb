"""Everything that the console adds to the supervisor's HTTP interface, and the application with both."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

from millstream.bridges.reports import FOLDER as BRIDGES
from millstream.serving.access import Access
from millstream.supervision.alerting import Alerting
from millstream.supervision.calls import Calls
from millstream.supervision.http import Admission, app
from millstream.supervision.status import Status
from millstream.supervision.supervisor import Supervisor
from millstream.web_console.bridges import bridge_route
from millstream.web_console.dashboards import dashboard_routes
from millstream.web_console.dead_letters import DeadLetters
from millstream.web_console.front_door import FrontDoor
from millstream.web_console.planes import Planes
from millstream.web_console.plans import plan_route
from millstream.web_console.table_changes import ShownChanges
from millstream.web_console.topics import Topics
from millstream.web_console.why import Questions


@contextmanager
def with_console(
    supervisor: Supervisor,
    status: Status,
    log_address: str,
    access: Access,
    admission: Admission,
    token: str,
    url: str,
    user: str,
    alerting: Alerting | None = None,
    *,
    acts: bool = True,
) -> Iterator[FrontDoor]:
    """The application that `millstream up` serves. `user` is the owner of the token."""
    planes = Planes(supervisor, log_address)
    topics = Topics(log_address, supervisor.store, user, supervisor.masking)
    calls = Calls(log_address, lambda name: supervisor.saved.existing(name).path, supervisor.masking)
    with closing(planes), closing(topics), closing(calls):
        more = [
            plan_route(status),
            planes.route(),
            Questions(supervisor).route(),
            *topics.routes(),
            ShownChanges(topics, supervisor.masking).route(),
            *DeadLetters(supervisor, topics, user).routes(),
            *dashboard_routes(supervisor),
            bridge_route(supervisor.jobs.parent / BRIDGES),
            *calls.routes(),
        ]
        interface = app(supervisor, status, admission, user, alerting=alerting, more=more)
        yield FrontDoor(interface, access, token, url, user, acts=acts)

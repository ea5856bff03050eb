"""The console's front door: serves its pages, and lets browsers that have logged in speak the supervisor's interface.

It stands before that interface. A request with the token passes as it is; one with the cookie of a session gets the
token here, if it also has the session's secret or changes nothing; everything else is refused by the interface itself.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from millstream.errors import InvalidInput
from millstream.serving.access import Access, Denied
from millstream.serving.http import Application
from millstream.supervision.http import read_body
from millstream.web_console.files import OPEN, static_files
from millstream.web_console.live import Asked, events
from millstream.web_console.sessions import SESSION_S_MAX, Session, Sessions

BASE = "/console/"
COOKIE = "millstream_session"
CSRF = "x-millstream-csrf"
LOGIN_BYTES_MAX = 4096
PATH_BYTES_MAX = 4096
PATHS_MAX = 32
STREAMS_MAX = 32
"""Half of the connections that the server accepts: requests are still answered."""
SAFE = ("GET", "HEAD")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class FrontDoor:
    """The ASGI application that `millstream up` serves."""

    def __init__(
        self, inner: Application, access: Access, token: str, url: str, user: str, *, acts: bool = True
    ) -> None:
        """`acts`: whether its pages offer to change something."""
        self.sessions = Sessions()
        self.ends: Callable[[], bool] = lambda: False
        """Whether the server is about to end: streams end with it."""
        self._inner, self._access, self._token, self._user = inner, access, token, user
        self._url, self._acts = url, acts
        self._files = static_files()
        self._asked = Asked(inner, token, url.partition("://")[2])
        self._streams = 0

    def link(self, page: str = "") -> str:
        """An address that logs a browser in, once, and opens a page such as "/topics".

        The code is in the fragment, which browsers do not send.
        """
        return f"{self._url}{BASE}#code={self.sessions.new_code()}{page}"

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        path = scope["path"]
        if path == BASE[:-1] or path.startswith(BASE):
            try:
                made = await self._answer(request, path[len(BASE) :])
            except Denied as denied:
                made = refused(denied.status, denied.what, denied.next_step)
            except ClientDisconnect:
                return
            made.headers.update(HEADERS)
            await made(scope, receive, send)
            return
        if not request.headers.get("authorization"):
            try:
                session = self._session(request)
            except Denied as denied:
                await refused(denied.status, denied.what, denied.next_step)(scope, receive, send)
                return
            if session is not None:
                bearer = (b"authorization", b"Bearer " + self._token.encode())
                kept = [pair for pair in scope["headers"] if pair[0].lower() not in (b"authorization", b"cookie")]
                scope = {**scope, "headers": [*kept, bearer]}
        await self._inner(scope, receive, send)

    # ------------------------------------------------------------ the console's own paths

    async def _answer(self, request: Request, name: str) -> Response:
        self._access.check_address(request.scope["headers"])
        if name == "codes" and request.method == "POST":
            self._access.check(request.scope["headers"])
            return JSONResponse({"url": self.link()}, headers={"cache-control": "no-store"})
        if name == "login" and request.method == "POST":
            return await self._log_in(request)
        session = self._session(request)
        if session is not None and name == "logout" and request.method == "POST":
            self.sessions.close(session)
            made = JSONResponse({"closed": True})
            made.delete_cookie(self._cookie(request), path="/", httponly=True, samesite="strict")
            return made
        if request.method not in SAFE:
            return refused(404, "there is nothing here", "the console is at /console/")
        if session is not None and name == "session":
            document = {"csrf": session.csrf, "user": self._user, "acts": self._acts}
            return JSONResponse(document, headers={"cache-control": "no-store"})
        if session is not None and name == "live":
            return self._live(request)
        return self._file(request, name, is_in=session is not None)

    def _file(self, request: Request, name: str, *, is_in: bool) -> Response:
        name = name or ("index.html" if is_in else "login.html")
        file = self._files.get(name)
        if file is None or not (is_in or name in OPEN):
            return refused(404 if is_in else 401, "there is nothing here", "the console is at /console/; log in first")
        headers = {"etag": file.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == file.tag:
            return Response(status_code=304, headers=headers)
        return Response(file.content, media_type=file.media_type, headers=headers)

    async def _log_in(self, request: Request) -> Response:
        try:
            given = json.loads(await read_body(request, LOGIN_BYTES_MAX))
            code, token = str(given.get("code") or ""), str(given.get("token") or "")
        except InvalidInput as error:
            raise Denied(413, error.what, "send a code or the token") from None
        except (ValueError, AttributeError, RecursionError):
            raise Denied(400, "the request is not a JSON object", 'send {"code": …} or {"token": …}') from None
        session = None
        if token and hmac.compare_digest(token.strip().encode(), self._token.encode()):
            session = self.sessions.open()
        elif code:
            session = self.sessions.enter(code)
        if session is None:
            raise Denied(401, "this link was used, or is too old", "get another: millstream console")
        made = JSONResponse({"csrf": session.csrf, "user": self._user}, headers={"cache-control": "no-store"})
        made.set_cookie(
            self._cookie(request),
            session.identity,
            max_age=int(SESSION_S_MAX),
            path="/",
            httponly=True,
            samesite="strict",
            secure=request.headers.get("origin", "").startswith("https://"),
        )
        return made

    def _live(self, request: Request) -> Response:
        paths = request.query_params.getlist("path")
        if not 1 <= len(paths) <= PATHS_MAX or not all(map(_can_be_asked, paths)):
            raise Denied(400, "there is no such path", f"live?path=/v1/jobs, and at most {PATHS_MAX} of them")
        if self._streams >= STREAMS_MAX:
            raise Denied(503, "too many pages are open", "close some of them")
        self._streams += 1

        async def counted() -> Any:
            try:
                async for each in events(self._asked.get, paths, self.ends):
                    yield each
            finally:
                self._streams -= 1

        return StreamingResponse(counted(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    # ------------------------------------------------------------ sessions

    def _session(self, request: Request) -> Session | None:
        """The session of a request; None if it has none. Raises Denied if the session does not allow the request."""
        found = self.sessions.find(_cookie_value(request, self._cookie(request)))
        if found is None:
            return None
        self._access.check_address(request.scope["headers"])
        given = request.headers.get(CSRF, "")
        if request.method not in SAFE and not hmac.compare_digest(given.encode(), found.csrf.encode()):
            raise Denied(403, "the request lacks the secret of its session", f"send the header {CSRF}")
        return found

    def _cookie(self, request: Request) -> str:
        """Cookies do not distinguish ports, so that of another supervisor on this machine has another name."""
        return f"{COOKIE}_{request.headers.get('host', '').rpartition(':')[2] or '80'}"


def _can_be_asked(path: str) -> bool:
    return path.startswith("/v1/") and path.isascii() and len(path) <= PATH_BYTES_MAX


def refused(status: int, what: str, next_step: str) -> Response:
    document = {"error": {"kind": "Denied", "what": what, "where": None, "next": next_step}}
    return JSONResponse(document, status, headers={"cache-control": "no-store"})


def _cookie_value(request: Request, name: str) -> str:
    try:
        found = SimpleCookie(request.headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value

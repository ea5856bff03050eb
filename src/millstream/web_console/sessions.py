"""Who may use the console: one-time codes in links, and the sessions of browsers.

A browser never holds the supervisor's token. It exchanges a code, or the token once, for a cookie that only this server
gets back, and sends a second secret of the session with every request that changes something.
"""

from __future__ import annotations

import hmac
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

CODE_S_MAX = 600.0
SESSION_S_MAX = 12 * 3600.0
CODES_MAX = 100
SESSIONS_MAX = 1000


@dataclass(frozen=True)
class Session:
    identity: str = field(repr=False)
    csrf: str = field(repr=False)
    """What every request that changes something must repeat: a page of another origin cannot read it."""
    ends: float


class Sessions:
    """Codes work once. Both are kept in memory: a restarted supervisor asks to log in again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: dict[str, float] = {}
        self._sessions: dict[str, Session] = {}

    def new_code(self) -> str:
        with self._lock:
            self._forget_old()
            while len(self._codes) >= CODES_MAX:
                del self._codes[next(iter(self._codes))]
            code = secrets.token_urlsafe(16)  # short, so that the link fits on a line of a terminal
            self._codes[code] = self._clock() + CODE_S_MAX
            return code

    def enter(self, code: str) -> Session | None:
        """A session for a code, which is used up; None if it is unknown, used or too old."""
        with self._lock:
            self._forget_old()
            found = next((each for each in self._codes if hmac.compare_digest(each.encode(), code.encode())), None)
            if found is None:
                return None
            del self._codes[found]
        return self.open()

    def open(self) -> Session:
        with self._lock:
            self._forget_old()
            while len(self._sessions) >= SESSIONS_MAX:
                del self._sessions[next(iter(self._sessions))]
            session = Session(secrets.token_urlsafe(32), secrets.token_urlsafe(32), self._clock() + SESSION_S_MAX)
            self._sessions[session.identity] = session
            return session

    def find(self, identity: str) -> Session | None:
        with self._lock:
            self._forget_old()
            return self._sessions.get(identity)

    def close(self, session: Session) -> None:
        with self._lock:
            self._sessions.pop(session.identity, None)

    def _forget_old(self) -> None:
        now = self._clock()
        self._codes = {code: ends for code, ends in self._codes.items() if ends > now}
        self._sessions = {each: session for each, session in self._sessions.items() if session.ends > now}

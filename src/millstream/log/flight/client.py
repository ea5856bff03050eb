"""The connection to a log server. A server that does not answer is an error that may pass."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pyarrow.flight as flight

from millstream.errors import InvalidInput, MillstreamError, NoAccess, SourceUnavailable
from millstream.log.flight.protocol import decoded, encoded, error_of

TOKEN_VARIABLE = "MILLSTREAM_TOKEN"
SCHEMES = ("flight", "flight+tls")
CALL_SECONDS = 60.0


class Connection:
    """Made from flight://host:port, or flight+tls://host:port?ca=FILE. The token is in MILLSTREAM_TOKEN."""

    def __init__(self, address: str) -> None:
        parts = urlsplit(address)
        self.shown = f"{parts.scheme}://{parts.hostname}:{parts.port}"
        if parts.scheme not in SCHEMES or not parts.hostname or parts.port is None:
            raise InvalidInput(f"'{self.shown}' is not the address of a log server", next_step="flight://host:8815")
        is_secure = parts.scheme == "flight+tls"
        authority = parse_qs(parts.query).get("ca", [None])[0]
        settings: dict[str, Any] = {}
        if is_secure and authority is not None:
            settings["tls_root_certs"] = Path(authority).read_bytes()
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self._client = flight.FlightClient(f"grpc{'+tls' if is_secure else '+tcp'}://{host}:{parts.port}", **settings)
        token = os.environ.get(TOKEN_VARIABLE)
        headers = [] if token is None else [(b"authorization", f"Bearer {token.strip()}".encode())]
        self._options = flight.FlightCallOptions(timeout=CALL_SECONDS, headers=headers)

    def ask(self, question: str, **given: Any) -> Any:
        with self.translated():
            answers = self._client.do_action(flight.Action(question, encoded(given)), self._options)
            return decoded(next(iter(answers)).body)

    def get(self, given: Any) -> Any:
        return self._client.do_get(flight.Ticket(encoded(given)), self._options)

    def put(self, given: Any, schema: Any) -> Any:
        return self._client.do_put(flight.FlightDescriptor.for_command(encoded(given)), schema, self._options)

    @contextmanager
    def translated(self) -> Iterator[None]:
        try:
            yield
        except flight.FlightUnauthenticatedError as error:
            raise NoAccess(
                "the log server rejects the token", where=self.shown, next_step=f"set {TOKEN_VARIABLE} to its token"
            ) from error
        except flight.FlightError as error:
            raise self._translated(error) from error
        except (OSError, StopIteration) as error:  # Arrow's own errors are of this kind
            raise self._unavailable(error) from error

    def _translated(self, error: Exception) -> MillstreamError:
        return error_of(str(error)) or self._unavailable(error)

    def _unavailable(self, error: Exception) -> SourceUnavailable:
        reason = str(error).partition(". gRPC client debug context")[0].partition("\n")[0][:300]
        return SourceUnavailable(
            f"the log server does not answer: {reason}",
            where=self.shown,
            next_step="check that `millstream listen flight` runs there",
        )

    def close(self) -> None:
        self._client.close()

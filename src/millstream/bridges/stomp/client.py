"""One STOMP 1.2 connection: a subscription whose messages are acknowledged, or messages sent in transactions."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from millstream.bridges.brokers.address import BrokerAddress
from millstream.bridges.brokers.failures import ConnectionLost, Declined, Rejected, is_not_permitted
from millstream.bridges.brokers.socket import BrokerSocket
from millstream.bridges.stomp.wire import BEAT, BrokenFrame, Decoder, Frame, encoded

ANSWER_SECONDS = 30.0
WINDOW_BYTES = 1 << 20
"""What Artemis sends before an acknowledgement; other brokers count messages."""
SUBSCRIPTION = "millstream"


@dataclass(frozen=True)
class StompBroker(BrokerAddress):
    protocol: ClassVar[str] = "STOMP"
    ports: ClassVar[Mapping[str, int]] = {"stomp": 61613, "stomps": 61614}
    password_variable: ClassVar[str] = "MILLSTREAM_STOMP_PASSWORD"

    @property
    def virtual_host(self) -> str:
        return unquote(urlsplit(self.address).path.removeprefix("/")) or self.host


class StompConnection:
    def __init__(self, broker: StompBroker, *, client_id: str | None = None, body_bytes_max: int = 0) -> None:
        """Returns when the broker has accepted it."""
        self._decoder = Decoder(body_bytes_max)
        self._waiting: list[Frame] = []
        self._last_receipt = 0
        self._socket = BrokerSocket(broker)
        try:
            self._connect(broker, client_id)
        except BaseException:
            self.close()
            raise

    def _connect(self, broker: StompBroker, client_id: str | None) -> None:
        beat_ms = round(broker.heartbeat_seconds * 1000)
        headers = {"accept-version": "1.2", "host": broker.virtual_host, "heart-beat": f"{beat_ms},{beat_ms}"}
        if broker.user is not None:
            headers["login"] = broker.user
        if broker.password is not None:
            headers["passcode"] = broker.password.reveal()
        if client_id is not None:
            headers["client-id"] = client_id
        self._socket.send(encoded("CONNECT", headers))
        answer = self._answer("CONNECTED", "")
        sends_ms, wants_ms = (int(part) for part in answer.headers.get("heart-beat", "0,0").split(","))
        self._socket.keep_alive(
            BEAT,
            max(wants_ms, beat_ms) / 2000 if wants_ms else None,  # twice as often: a busy machine is late
            max(sends_ms, beat_ms) / 1000 if sends_ms else None,
        )

    # ------------------------------------------------------------ receiving

    def subscribe(self, destination: str, headers: Mapping[str, str]) -> None:
        """Returns when the broker has accepted it."""
        given = {"id": SUBSCRIPTION, "destination": destination, "ack": "client", **headers}
        self._confirmed("SUBSCRIBE", given)

    def messages(self, seconds: float) -> list[Frame]:
        """What has come, or nothing after so long."""
        frames, self._waiting = self._waiting or self._received(seconds), []
        for frame in frames:
            if frame.command == "ERROR":
                raise ConnectionLost(_text(frame))
        return [each for each in frames if each.command == "MESSAGE"]

    def acknowledge(self, message: Frame) -> None:
        """This one and all before it."""
        self._socket.send(encoded("ACK", {"id": message.headers.get("ack", message.headers["message-id"])}))

    # ------------------------------------------------------------ sending

    def send_together(self, messages: Sequence[Frame]) -> None:
        """In one transaction. Raises Declined if the broker does not take it."""
        transaction = f"tx-{self._last_receipt}"
        self._socket.send(encoded("BEGIN", {"transaction": transaction}))
        for message in messages:
            self._socket.send(encoded("SEND", {**message.headers, "transaction": transaction}, message.body))
        self._confirmed("COMMIT", {"transaction": transaction}, declines=True)

    def send(self, message: Frame) -> None:
        self._confirmed("SEND", message.headers, message.body, declines=True)

    # ------------------------------------------------------------ both

    def close(self) -> None:
        self._socket.close()

    def _confirmed(
        self, command: str, headers: Mapping[str, str], body: bytes = b"", *, declines: bool = False
    ) -> None:
        self._last_receipt += 1
        receipt = str(self._last_receipt)
        self._socket.send(encoded(command, {**headers, "receipt": receipt}, body))
        self._answer("RECEIPT", receipt, declines=declines)

    def _answer(self, command: str, receipt: str, *, declines: bool = False) -> Frame:
        """Messages that come before it are kept."""
        deadline = time.monotonic() + ANSWER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            self._waiting += self._received(left)
            for index, frame in enumerate(self._waiting):
                if frame.command == "ERROR":
                    raise self._error(_text(frame), declines)
                if frame.command == command and frame.headers.get("receipt-id", "") == receipt:
                    return self._waiting.pop(index)
        raise ConnectionLost(f"the broker did not answer in {ANSWER_SECONDS:g} s")

    def _error(self, text: str, declines: bool) -> Exception:
        if not declines or is_not_permitted(text):
            return Rejected(text)
        return Declined(text)

    def _received(self, seconds: float) -> list[Frame]:
        try:
            return self._decoder.feed(self._socket.receive(seconds))
        except BrokenFrame as error:
            raise ConnectionLost(str(error)) from error


def _text(frame: Frame) -> str:
    """What the broker says about an error, in one line."""
    lines = frame.headers.get("message", "").splitlines() or frame.body.decode(errors="replace").splitlines()
    return lines[0] if lines else "an error without a message"

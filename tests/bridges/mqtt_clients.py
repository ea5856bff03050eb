"""Clients of an MQTT broker, as devices are."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any, NamedTuple

from millstream.bridges.mqtt.client_loop import ClientLoop
from waiting import until

RECONNECT_S = 0.5


class ReconnectingLoop(ClientLoop):
    """Paho's own loop does not work for descriptors above 1023, which a long run of tests has."""

    def run(self) -> None:
        super().run()
        while not self.is_stopping:
            time.sleep(RECONNECT_S)
            if not self.is_stopping:
                with suppress(OSError):  # the broker is away
                    self._client.reconnect()
                super().run()


class Received(NamedTuple):
    topic: str
    payload: bytes
    is_retained: bool
    properties: dict[str, str]


class Subscriber:
    """Keeps what it got. The broker keeps its session while it is away."""

    def __init__(self, port: int, filter: str, **login: Any) -> None:
        from paho.mqtt import client as paho
        from paho.mqtt.packettypes import PacketTypes
        from paho.mqtt.properties import Properties

        self.got: list[Received] = []
        self._subscribed = False
        self._client = paho.Client(paho.CallbackAPIVersion.VERSION2, f"subscriber-{id(self)}", protocol=paho.MQTTv5)
        if "context" in login:
            self._client.tls_set_context(login["context"])
        self._client.on_connect = lambda client, *_: client.subscribe(filter, 1)
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message
        self._loop = ReconnectingLoop(self._client)
        session = Properties(PacketTypes.CONNECT)
        session.SessionExpiryInterval = 3600
        self._client.connect("127.0.0.1", port, clean_start=False, properties=session)
        self._loop.start()
        until(lambda: self._subscribed, "the broker has the subscription")

    def _on_subscribe(self, *_: Any) -> None:
        self._subscribed = True

    def _on_message(self, client: Any, data: Any, message: Any) -> None:
        properties = dict(getattr(message.properties, "UserProperty", ()))
        self.got.append(Received(message.topic, bytes(message.payload), message.retain, properties))

    def close(self) -> None:
        self._client.disconnect()
        self._loop.stop()

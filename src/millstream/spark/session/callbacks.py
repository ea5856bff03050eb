"""Protects the way back from the JVM to Python.

The JVM calls functions of this process, such as that of `foreachBatch`, through a TCP port on the loopback interface.
PySpark opens that port without a secret, so every user of the machine could call them. Here it has one.
"""

from __future__ import annotations

import secrets
from typing import Any


def authenticate(gateway: Any) -> None:
    """Opens the port with a secret of its own that the JVM presents, before PySpark would open it without."""
    from py4j.clientserver import ClientServer  # type: ignore[import-untyped]
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark.java_gateway import ensure_callback_server_started

    if not isinstance(gateway, ClientServer):  # PYSPARK_PIN_THREAD=false: py4j has a secret there
        return
    if gateway.callback_server_parameters.auth_token is not None:
        return
    in_use = gateway._callback_server is not None  # in a session that the user made
    # Not the secret of the gateway: a process that took over this port later would be sent it by the JVM.
    secret = secrets.token_hex(32)
    gateway.callback_server_parameters.auth_token = secret
    ensure_callback_server_started(gateway)  # type: ignore[no-untyped-call]
    jvm, server = gateway.jvm, JavaObject("GATEWAY_SERVER", gateway._gateway_client)
    held = server.getGateway()
    plain = held.getCallbackClient()
    timing = (30, jvm.java.util.concurrent.TimeUnit.SECONDS, jvm.javax.net.SocketFactory.getDefault())
    client = jvm.py4j.PythonClient(held, None, plain.getPort(), plain.getAddress(), *timing, server, True, 0, secret)
    # py4j has no setter for it: PySpark replaces the JVM's first client, which has a secret, by a copy without one.
    field = jvm.java.lang.Class.forName("py4j.Gateway").getDeclaredField("cbClient")
    field.setAccessible(True)
    field.set(held, client)
    if not in_use:
        plain.shutdown()

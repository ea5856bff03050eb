"""Authenticates callbacks from the JVM to Python.

The JVM calls functions of this process, such as that of `foreachBatch`, through a TCP port on the loopback interface.
PySpark opens that port without a secret, so every user of the machine could call them. This adds one.
"""

from __future__ import annotations

import secrets
from typing import Any


def authenticate(gateway: Any) -> None:
    """Opens the port with its own secret, which the JVM presents, before PySpark opens it without one."""
    from py4j.clientserver import ClientServer  # type: ignore[import-untyped]
    from py4j.java_gateway import JavaObject  # type: ignore[import-untyped]
    from pyspark.java_gateway import ensure_callback_server_started

    if not isinstance(gateway, ClientServer):  # PYSPARK_PIN_THREAD=false: py4j uses a secret there
        return
    if gateway.callback_server_parameters.auth_token is not None:
        return
    in_use = gateway._callback_server is not None  # in a session that the user created
    # Not the gateway's secret: the JVM would send it to a process that later takes over this port.
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

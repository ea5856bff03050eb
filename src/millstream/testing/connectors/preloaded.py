"""What the processes of the suite load once, before they are forked; what is not installed is not needed."""

from contextlib import suppress
from importlib import import_module

MODULES = (
    "millstream.bridges.http.listener",
    "millstream.bridges.landing",
    "millstream.connectors.opening",
    "millstream.serving.http",
    "millstream.testing.connectors.sink_suite",
    "httptools",
    "paho.mqtt.client",
    "pika",
    "pytest",
    "uvicorn",
    "uvicorn.protocols.http.httptools_impl",
)
for _module in MODULES:
    with suppress(ImportError):
        import_module(_module)

"""Models in a topic, which flows apply to their rows: the newest one, without a restart."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Self

from millstream.errors import InvalidInput
from millstream.log import Broker, connect
from millstream.log.preparing import prepared_topic
from millstream.plan.flow import Flow
from millstream.plan.models.formats import COEFFICIENTS, ONNX, linear_of, model_of
from millstream.plan.models.live_models import CONTENT, FORMAT
from millstream.plan.stream import Stream
from millstream.user_lines import AtUsersLine, users_line

SCHEMA = f"{FORMAT} string, {CONTENT} binary, at timestamp"
KEY = "model"
PICKLE = b"\x80"
"""The first byte of every pickle since version 2."""


def models(topic: str, *, log: str | os.PathLike[str] | Broker | None = None) -> StoredModels:
    """Opens the models of a topic, which is created if it is missing: `stream.predict(ms.models("risk"), …)`.

    `log` is a folder or kafka://host:9092; default: MILLSTREAM_BROKER, else `.millstream`. The topic is compacted: in
    the end, it has the newest model.
    """
    opens = log is None or isinstance(log, str | os.PathLike)
    opened: Broker = connect(log) if opens else log  # type: ignore[assignment, arg-type]
    try:
        with AtUsersLine():
            prepared_topic(opened, topic, SCHEMA, refused="does not hold models", compaction=True)
    except BaseException:
        if opens:
            opened.close()
        raise
    return StoredModels(opened, topic, fspath(log) if isinstance(log, str | PathLike) else None, owns_log=opens)


class StoredModels:
    """Made by `models(…)`."""

    def __init__(self, broker: Broker, topic: str, address: str | None, *, owns_log: bool) -> None:
        self.topic = topic
        self._broker = broker
        self._address = address
        self._owns_log = owns_log

    def put(self, model: Mapping[str, Any] | str | PathLike[str] | bytes) -> None:
        """Replaces the model in running flows: an ONNX file, by its path or bytes, or coefficients as a dict.

        Coefficients are those of a linear model: {"coefficients": [0.5, -1.2], "intercept": 3.0, "link": "logistic"}.
        """
        with AtUsersLine():
            format, content = _encoded(model)
            model_of(format, content)
            row = {FORMAT: format, CONTENT: content, "at": datetime.now(UTC)}
            with self._broker.producer(acks="all") as producer:
                producer.send(self.topic, row, key=KEY).wait()

    def as_stream(self, flow: Flow) -> Stream:
        """The models as a stream of a flow, which reads them from its own log."""
        if flow.log is not None and self._address is not None and flow.log != self._address:
            raise InvalidInput(
                f"the models are in the log {self._address}, but the flow '{flow.name}' reads from {flow.log}",
                where=users_line(),
                next_step=f"ms.Flow('{flow.name}', log='{self._address}')",
            )
        return flow.read(self.topic, SCHEMA).select(FORMAT, CONTENT)

    def close(self) -> None:
        """Closes the log, if `models` has opened it."""
        if self._owns_log:
            self._broker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()


def _encoded(model: object) -> tuple[str, bytes]:
    if isinstance(model, Mapping):
        linear_of(model)
        return COEFFICIENTS, json.dumps(dict(model)).encode()
    try:
        content = model if isinstance(model, bytes) else Path(model).read_bytes()  # type: ignore[arg-type]
    except TypeError:
        raise InvalidInput(
            f"{type(model).__name__} is not a model that can be stored",
            next_step="export it to ONNX, or store its coefficients; a pickle can run code, and is refused",
        ) from None
    except OSError as error:
        raise InvalidInput(
            f"the model {model!r} cannot be read: {error.strerror}", next_step="give the path of an ONNX file"
        ) from None
    if content.startswith(PICKLE):
        raise InvalidInput("a pickle is refused: it can run code", next_step="export the model to ONNX")
    return ONNX, content

"""Opens handles of librdkafka with the settings of confluent-kafka."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping
from typing import Any

from millstream.log.kafka.failures import client_module
from millstream.log.kafka.librdkafka import ERROR_BYTES, Library, library

CALLBACKS = ("logger", "error_cb")
LEVELS = (
    logging.CRITICAL, logging.CRITICAL, logging.CRITICAL, logging.ERROR,
    logging.WARNING, logging.INFO, logging.INFO, logging.DEBUG,
)  # fmt: skip
"""By syslog's levels."""


def library_for(settings: Mapping[str, Any]) -> Library | None:
    """None where confluent-kafka has to do it: without the library, or for settings that only it understands."""
    return library() if _is_plain(settings) else None


def _is_plain(settings: Mapping[str, Any]) -> bool:
    """Whether all settings are texts and numbers, and no token has to be fetched by Python."""
    if any(
        str(value).upper() == "OAUTHBEARER" for name, value in settings.items() if name.startswith("sasl.mechanism")
    ):
        return False
    own = {name: value for name, value in settings.items() if name not in CALLBACKS}
    return all(isinstance(value, str | int | float) for value in own.values()) and "plugin.library.paths" not in own


def open_handle(library: Library, kind: int, settings: Mapping[str, Any], prepare: Callable[[int], None]) -> int:
    """A handle whose log lines wait in a queue; `prepare` sets what is not a text in its configuration."""
    error = ctypes.create_string_buffer(ERROR_BYTES)
    conf = library.conf_new()
    try:
        for name, value in settings.items():
            if name not in CALLBACKS:
                text = str(value).lower() if isinstance(value, bool) else str(value)
                if library.conf_set(conf, name.encode(), text.encode(), error, ERROR_BYTES):
                    raise _refused(error)
        library.conf_set(conf, b"log.queue", b"true", error, ERROR_BYTES)
        prepare(conf)
        handle: int | None = library.new(kind, conf, error, ERROR_BYTES)
        if not handle:
            raise _refused(error)
    except BaseException:
        library.conf_destroy(conf)
        raise
    library.set_log_queue(handle, None)
    return handle


def _refused(error: Any) -> Exception:
    module = client_module()
    found: Exception = module.KafkaException(
        module.KafkaError(module.KafkaError._INVALID_ARG, error.value.decode(errors="replace"))
    )
    return found


def raise_code(code: int) -> None:
    """For functions that return a code."""
    if code:
        raise client_module().KafkaException(client_module().KafkaError(code))


def raise_error(library: Library, error: int | None) -> None:
    """For functions that return an object for an error, which is destroyed."""
    if not error:
        return
    module = client_module()
    try:
        found = module.KafkaError(
            library.error_code(error),
            library.error_string(error).decode(errors="replace"),
            fatal=bool(library.error_is_fatal(error)),
            retriable=bool(library.error_is_retriable(error)),
            txn_requires_abort=bool(library.error_txn_requires_abort(error)),
        )
    finally:
        library.error_destroy(error)
    raise module.KafkaException(found)


def reported(library: Library, handle: int, code: int, reason: bytes | None) -> Any:
    """An error that the client reports on its own; for a fatal one, its cause."""
    text = ctypes.create_string_buffer(reason or b"", ERROR_BYTES)
    is_fatal = code == client_module().KafkaError._FATAL
    code = library.fatal_error(handle, text, ERROR_BYTES) if is_fatal else code
    return client_module().KafkaError(code, text.value.decode(errors="replace"), fatal=is_fatal)


def log_line(logger: logging.Logger, level: int, facility: bytes | None, line: bytes | None) -> None:
    texts = [(part or b"").decode(errors="replace") for part in (facility, line)]
    logger.log(LEVELS[min(level, 7)], "%s %s", *texts)

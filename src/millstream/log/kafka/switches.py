"""Switches on Kafka: all of them are one document in `_millstream`, so readers see a change as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from millstream.errors import DamagedLog
from millstream.log.kafka.descriptions import Descriptions
from millstream.log.switches import Switch, Switches

KIND, NAME = "switches", "all"


class SwitchDocument(Switches):
    def __init__(self, descriptions: Descriptions) -> None:
        self._descriptions = descriptions
        self._seen: tuple[Any, Mapping[str, Switch]] = (None, {})

    def now(self) -> Mapping[str, Switch]:
        return self._read_from(self._descriptions.of(KIND, fresh=False))

    def fresh(self) -> Mapping[str, Switch]:
        return self._read_from(self._descriptions.of(KIND))

    def write(self, switches: Mapping[str, Switch]) -> None:
        self._descriptions.write(KIND, NAME, {name: switch.to_document() for name, switch in sorted(switches.items())})

    def _read_from(self, documents: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Switch]:
        if self._seen[0] is not documents:
            try:
                found = {name: Switch.of(name, entry) for name, entry in documents.get(NAME, {}).items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise DamagedLog(
                    f"the switches cannot be read: {error}",
                    where="topic '_millstream'",
                    next_step="only Millstream should write to this topic",
                ) from error
            self._seen = documents, found
        return self._seen[1]

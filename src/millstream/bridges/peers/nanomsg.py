"""Messages of nanomsg (NNG) into a topic. Those of `ms.nanomsg` have five parts in one: topic, a zero, sender, number,
the length of the id, the id and the body."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar

from millstream.bridges.landing import Landing
from millstream.bridges.peers.messages import (
    NUMBER_BYTES,
    SENDER_BYTES,
    TOGETHER_MAX,
    PeerAddress,
    PeerBridge,
    PeerSource,
    Receive,
)
from millstream.errors import InvalidInput

if TYPE_CHECKING:
    import pynng

WAIT_MS = 200
WAITING_MAX = 8192
"""Messages that NNG keeps until they are stored."""
SIZES = 8
"""NNG ends a connection that sends a message so many times as large as allowed; smaller ones become dead letters."""
HEAD_BYTES = SENDER_BYTES + NUMBER_BYTES + 1


class NanomsgAddress(PeerAddress):
    protocol: ClassVar[str] = "nanomsg"

    def open(self, made: pynng.Socket) -> None:
        """A side that connects keeps trying."""
        try:
            if self.bind:
                made.listen(self.text)
            else:
                made.dial(self.text, block=False)
        except installed().NNGException as error:
            made.close()
            raise self.unusable(error) from error


NanomsgSource = PeerSource[NanomsgAddress]


class NanomsgBridge(PeerBridge[NanomsgAddress]):
    name: ClassVar[str] = "nanomsg"

    def __init__(self, source: NanomsgSource, landing: Landing, topic: str) -> None:
        installed()
        super().__init__(source, landing, topic)

    @contextmanager
    def _opened(self) -> Iterator[Receive]:
        library, source = installed(), self._source
        settings = {"recv_timeout": WAIT_MS, "recv_max_size": SIZES * source.bytes_max}
        if source.kind == "pull":
            made = library.Pull0(**settings)
        else:
            made = library.Sub0(**settings)
            made.recv_buffer_size = WAITING_MAX
            for prefix in source.prefixes:
                made.subscribe(prefix.encode())
        source.address.open(made)
        with made:
            yield lambda: [parts_of(each) if source.numbered else [each] for each in _received(made)]


def packed(parts: Sequence[bytes]) -> bytes:
    """What `parts_of` takes apart."""
    topic, sender, number, id, body = parts
    return b"".join((topic, b"\0", sender, number, bytes([len(id)]), id, body))


def parts_of(message: bytes) -> list[bytes]:
    """The five parts; only the message itself if it does not have them."""
    topic, zero, rest = message.partition(b"\0")
    if not zero or len(rest) < HEAD_BYTES or len(rest) < HEAD_BYTES + rest[HEAD_BYTES - 1]:
        return [message]
    id_end = HEAD_BYTES + rest[HEAD_BYTES - 1]
    number = rest[SENDER_BYTES : HEAD_BYTES - 1]
    return [topic, rest[:SENDER_BYTES], number, rest[HEAD_BYTES:id_end], rest[id_end:]]


def _received(at: pynng.Socket) -> list[bytes]:
    """What is there; it waits a moment for the first."""
    library = installed()
    found: list[bytes] = []
    try:
        found.append(at.recv())
        while len(found) < TOGETHER_MAX:
            found.append(at.recv(block=False))
    except (library.Timeout, library.TryAgain):
        pass
    return found


def installed() -> Any:
    """The library."""
    try:
        import pynng
    except ImportError as error:
        raise InvalidInput("nanomsg needs the package pynng", next_step="pip install 'millstream[nanomsg]'") from error
    return pynng

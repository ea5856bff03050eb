"""A game of chess: the moves are a stream, the board is their table, and its changes are a stream again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import chess
from rich.columns import Columns
from rich.console import Console
from rich.panel import Panel

import millstream as ms
from millstream.plan.steps.process import Key

# Paul Morphy against two guests of the Paris opera, 1858. With 12. O-O-O four squares change at once.
GAME = """
e4 e5 Nf3 d6 d4 Bg4 dxe5 Bxf3 Qxf3 dxe5 Bc4 Nf6 Qb3 Qe7 Nc3 c6 Bg5 b5 Nxb5 cxb5 Bxb5+ Nbd7 O-O-O Rd8 Rxd7 Rxd7 Rd1 Qe6
Bxd7+ Nxd7 Qb8+ Nxb8 Rd8#
"""
MOVES = GAME.split()
START = datetime(1858, 11, 2, 19, tzinfo=UTC)
SCHEMA = "game string, move string, at timestamp"
CASTLED = MOVES.index("O-O-O") + 1


def time_of(moves: int) -> datetime:
    """The time after a number of moves: one per minute."""
    return START + timedelta(minutes=moves)


def changed_squares(row: dict[str, Any], key: Key) -> Iterator[dict[str, Any]]:
    """The changes of a move by square; the square it leaves becomes empty. Without a move: the initial position."""
    before = chess.Board(key.state["position"]) if "position" in key.state else chess.Board(None)
    after = before.copy() if "position" in key.state else chess.Board()
    if row["move"] is not None:
        after.push_san(row["move"])
    for square in chess.SQUARES:
        if before.piece_at(square) != (piece := after.piece_at(square)):
            yield {
                "game": row["game"],
                "square": chess.square_name(square),
                "piece": None if piece is None else piece.symbol(),
            }
    key.state["position"] = after.fen()


def boards() -> ms.Flow:
    flow = ms.Flow("chess-board")
    moves = flow.read("moves", SCHEMA, event_time="at")
    squares = moves.key_by("game").process(changed_squares, "game string, square string, piece string")
    # A row without a piece deletes its square. What is captured gives way to what stands there next.
    board = squares.to_table(key=("game", "square"))
    board.write("board")
    board.as_of(time_of(CASTLED)).write("board.castled")
    board.changes().write("board.changes")
    return flow


def position(pieces: dict[str, str]) -> str:
    """A board as text, from pieces by square."""
    board = chess.Board(None)
    for square, piece in pieces.items():
        board.set_piece_at(chess.parse_square(square), chess.Piece.from_symbol(piece))
    return str(board)


def replayed(changes: list[dict[str, Any]], until: datetime) -> dict[str, str]:
    """The board, rebuilt from its changes up to a time: retractions first, then additions."""
    pieces: dict[str, str] = {}
    for change in sorted(changes, key=lambda change: (change["event_time"], change["weight"])):
        if change["event_time"] <= until and change["weight"] < 0:
            assert pieces.pop(change["square"]) == change["piece"]
        elif change["event_time"] <= until:
            pieces[change["square"]] = change["piece"]
    return pieces


def main(broker: str) -> None:
    with ms.connect(broker) as log:
        log.create_topic("moves", schema=SCHEMA)
        with log.producer() as producer:
            for number, move in enumerate([None, *MOVES]):
                producer.send("moves", {"game": "opera", "move": move, "at": time_of(number)}, key="opera")
        boards().run(until="caught up", broker=broker, batch_rows=10)

        made = {}
        for topic in ("board.castled", "board"):  # copies of tables: the newest record of a key is its row, if any
            newest = {record.key: record.value for record in log.consumer(topic).until_caught_up()}
            made[topic] = position({row["square"]: row["piece"] for row in newest.values() if row})
        changes = [record.value for record in log.consumer("board.changes").until_caught_up()]

    game, expected = chess.Board(), {}
    for number, move in enumerate(MOVES, start=1):
        game.push_san(move)
        expected[number] = str(game)
    for title, number, topic in (("12. O-O-O", CASTLED, "board.castled"), ("17. Rd8#", len(MOVES), "board")):
        again = position(replayed(changes, time_of(number)))
        Console().print(Columns([Panel(made[topic], title=title), Panel(again, title="by its changes")]))
        assert made[topic] == again == expected[number]
    print(f"{len(changes)} changes of squares. All boards are those of python-chess.")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="millstream-") as folder:
        main(folder)

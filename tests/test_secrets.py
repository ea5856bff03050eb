"""A secret is sent to another process as a number, which means something only where the secret is known."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys

from millstream.secrets import VARIABLE, Secret, delivery

RECEIVING = """
import pickle, sys
from millstream.errors import MillstreamError
try:
    print(pickle.loads(bytes.fromhex(sys.argv[1])).reveal())
except MillstreamError as error:
    print(type(error).__name__, error, sep="\\n")
"""


def received(sent: bytes, more: dict[str, str]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE} | more
    done = subprocess.run(
        [sys.executable, "-c", RECEIVING, sent.hex()], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_secret_is_sent_as_a_number_that_the_other_process_knows() -> None:
    sent = pickle.dumps(Secret("a password"))
    assert b"a password" not in sent
    assert received(sent, delivery()) == "a password\n"


def test_an_unknown_secret_number_raises_with_a_next_step() -> None:
    said = received(pickle.dumps(Secret("a password")), {})
    assert said.startswith("InvalidSetting\na password or key was sent by its number")
    assert VARIABLE in said
    assert "next:" in said
    other = pickle.dumps(Secret("another"))
    assert "InvalidSetting" in received(other, {VARIABLE: '{"of another": "x"}'})

"""Goal: whatever is in a file, reading it gives rows and dead letters, or refuses the file by name.

Method: good files of every format, packed and not, changed at random places.
"""

import gzip
import json
import os
import random

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.reading import slabs
from millstream.connectors.files.endpoint import files
from millstream.errors import InvalidInput
from millstream.records import Schema

ROUNDS = 40
SCHEMA = "s string, n int, a array<string>"
ROWS = [{"s": f"text {n % 5}", "n": n, "a": ["x", "y"] * (n % 3)} for n in range(300)]
PIECES = [b"", b"\x00" * 8, b"\xff" * 9, b"\x80" * 12, b'"', b"\n", b"\r", b"\x7f\xff\xff\xff", b"PAR1", b"[" * 300]
AVRO = {
    "type": "record",
    "name": "R",
    "fields": [
        {"name": "s", "type": "string"},
        {"name": "n", "type": ["null", "int"]},
        {"name": "a", "type": {"type": "array", "items": "string"}},
        {"name": "r", "type": ["null", "R"], "default": None},
    ],
}


def written(path, kind):
    if kind.startswith("parquet"):
        codec = kind.partition(" ")[2]
        pq.write_table(
            pa.Table.from_pylist(ROWS, Schema.of(SCHEMA).arrow),
            path,
            compression=codec,
            row_group_size=100,
            data_page_size=200,
        )
    elif kind.startswith("avro"):
        with path.open("wb") as file:
            fastavro.writer(file, AVRO, ROWS, codec=kind.partition(" ")[2], sync_interval=1000)
    else:
        csv = "s,n\n" + "".join(f'"{row["s"]}",{row["n"]}\n' for row in ROWS)
        lines = csv if kind.startswith("csv") else "".join(json.dumps(row) + "\n" for row in ROWS)
        path.write_bytes(gzip.compress(lines.encode()) if kind.endswith("gz") else lines.encode())
    return path.read_bytes()


@pytest.mark.parametrize(
    "kind", ["json", "json gz", "csv", "csv gz", "avro null", "avro deflate", "avro xz", "parquet none", "parquet zstd"]
)
def test_changed_files(tmp_path, open_, kind):
    random_ = random.Random(kind)
    format = kind.partition(" ")[0]
    path = tmp_path / ("a.gz" if kind.endswith("gz") else "a")
    schema = SCHEMA if format != "csv" else "s string, n int"
    good = written(path, kind)
    assert sum(slab.rows.num_rows for slab in slabs(open_(files(path, format), schema, name="good"))) == 300
    refused_at = set()
    for number in range(ROUNDS):
        made = bytearray(good)
        for _ in range(random_.randint(1, 3)):
            ends = random_.random() < 0.4  # headers and footers are where it hurts
            place = random_.choice([random_.randint(0, 60), max(0, len(made) - random_.randint(0, 300))] if ends else [
                random_.randint(0, len(made))])  # fmt: skip
            made[place : place + random_.choice([0, 1, 4, 30])] = random_.choice(PIECES)
        path.write_bytes(made)
        os.utime(path, (number, number))
        try:
            found = slabs(open_(files(path, format), schema, name=f"changed{number}"))
        except InvalidInput as error:  # of another schema, or without a column
            refused_at.add(error.where)
            continue
        for slab in found:
            slab.rows.validate(full=True)
            assert slab.rows.num_rows == len(slab.offsets)
            assert slab.dead is None or all(slab.dead.column("reason").to_pylist())
    assert refused_at <= {str(path)}

"""A process that appends numbered records to a partition and prints each acknowledged one, to be killed at any moment.

python appender.py FOLDER NAME COUNT SYNC SEGMENT_BYTES
"""

import sys
from pathlib import Path

import pyarrow as pa

from millstream.log.storage.disk import Disk
from millstream.log.storage.frame import draft
from millstream.log.storage.layout import HEADERS, TIMESTAMP, stored_schema
from millstream.log.storage.partition import Partition


def main(folder: str, name: str, count: str, sync: str, segment_bytes: str) -> None:
    schema = stored_schema(None)
    partition = Partition("topic", 0, Path(folder), schema, int(segment_bytes), Disk())
    print("ready", flush=True)
    sys.stdin.readline()
    for first in range(0, int(count), 3):
        drafts = []
        for number in (first, first + 1, first + 2):
            columns = [
                pa.array([name.encode()], pa.binary()),
                pa.array([b"%d:" % number + b"x" * (number * 41 % 600)], pa.binary()),
                pa.array([number], pa.int64()).cast(TIMESTAMP),
                pa.nulls(1, HEADERS),
            ]
            drafts.append(draft(pa.RecordBatch.from_arrays(columns, schema=schema), number))
        offsets = partition.append(drafts, sync=sync == "sync")
        for number, offset in enumerate(offsets, first):
            print(offset, number, flush=number == first + 2)


if __name__ == "__main__":
    main(*sys.argv[1:])

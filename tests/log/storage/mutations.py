"""Run as a program: mutates the files of partitions at random, and uses them in every way.

Whatever comes of it must be records or a MillstreamError: anything else ends the program, as does a crash of the
interpreter, a wait that takes too long, or memory without bounds. Half of the mutated frames get a checksum that
matches: those are crafted, not damaged.

usage: mutations.py FOLDER SEED ROUNDS
"""

from __future__ import annotations

import random
import resource
import shutil
import signal
import struct
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
from crc32c import crc32c

from millstream.errors import MillstreamError
from millstream.log import EmbeddedLog
from millstream.log.batches import Batch
from millstream.log.storage.aborted import ENTRY as ABORTED
from millstream.log.storage.compaction import compact
from millstream.log.storage.disk import Disk
from millstream.log.storage.frame import HEADER, HEADER_BYTES, draft
from millstream.log.storage.index import ENTRY as INDEXED
from millstream.log.storage.layout import stored_schema
from millstream.log.storage.mark import SLOT_BYTES
from millstream.log.storage.partition import Partition
from millstream.log.storage.reader import PartitionReader, newest_timestamp, offset_at_time
from millstream.log.storage.repair import repair
from millstream.log.storage.segment import PREFIX
from millstream.records import Schema

SCHEMA = Schema.of("name string, scores array<int>, tags map<string, double>, at timestamp, inner struct<text: string>")
SECONDS_MAX = 60
NUMBERS = [0, 1, 63, 64, 127, 255, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 40, (1 << 63) - 1, 1 << 63, (1 << 64) - 1]


def base(folder: Path) -> dict[str, pa.Schema]:
    """Topics with closed, compacted and active segments and aborted transactions."""
    row = {"name": "añb", "scores": [1, 2], "tags": {"x": 1.0}, "inner": {"text": "deep"}}
    with EmbeddedLog(folder, upkeep=False) as log:
        log.create_topic("typed", schema=SCHEMA, segment_bytes="4 KiB")
        log.create_topic("plain", segment_bytes="4 KiB", compaction=True)
        for topic, value in (("typed", row), ("plain", b"some bytes")):
            with log.producer(name="p") as producer:
                for number in range(8):
                    with suppress(InterruptedError), producer.transaction():
                        for key in range(6):
                            producer.send(topic, value, key=f"k{key}", headers={"h": b"1"})
                        if number % 3 == 0:
                            raise InterruptedError
        log.clean("plain")
        with log.producer() as producer:
            producer.send("plain", b"last", key="k")
    return {"typed": stored_schema(SCHEMA), "plain": stored_schema(None)}


def mutated(content: bytes, chance: random.Random) -> bytearray:
    made = bytearray(content)
    for _ in range(chance.choice([1, 1, 1, 2, 5])):
        place = chance.randrange(len(made)) if made else 0
        what = chance.randrange(6)
        if what == 0 and made:
            made[place] ^= 1 << chance.randrange(8)
        elif what == 1:
            size = chance.choice([1, 2, 4, 8])
            place = place // size * size
            made[place : place + size] = (chance.choice(NUMBERS) & ((1 << 8 * size) - 1)).to_bytes(size, "little")
        elif what == 2:
            del made[place : place + chance.choice([1, 8, 64, 4096])]
        elif what == 3:
            other = chance.randrange(len(made)) if made else 0
            size = chance.choice([4, 8, 64])
            made[place : place + size] = made[other : other + size]
        elif what == 4:
            del made[place:]
        else:
            made[place:place] = bytes(chance.choice([1, 64, 4096]))
    return made


def sealed(name: str, content: bytearray) -> bytearray:
    """With checksums that match, as somebody makes them who means it."""
    if name.endswith(".seg") and len(content) > PREFIX.size:
        length = PREFIX.unpack_from(content)[3]
        struct.pack_into("<I", content, 7, crc32c(memoryview(content)[11 : PREFIX.size + length]))
        position = (PREFIX.size + length + 63) // 64 * 64
        while position + HEADER_BYTES <= len(content):
            length = HEADER.unpack_from(content, position)[0]
            end = position + HEADER_BYTES + length
            body = crc32c(memoryview(content)[position + HEADER_BYTES : end])
            crc = crc32c(
                bytes(content[position + 8 : position + 64]), crc32c(bytes(content[position : position + 4]), body)
            )
            struct.pack_into("<I", content, position + 4, crc)
            position = end
    elif name.endswith(".idx"):
        for place in range(0, len(content) // INDEXED.size * INDEXED.size, INDEXED.size):
            struct.pack_into("<I", content, place + 24, crc32c(bytes(content[place : place + 24])))
    elif name == "aborted":
        for place in range(0, len(content) // ABORTED.size * ABORTED.size, ABORTED.size):
            struct.pack_into("<I", content, place + 20, crc32c(bytes(content[place : place + 20])))
    elif name == "mark":
        for place in (0, SLOT_BYTES):
            if len(content) >= place + SLOT_BYTES:
                count = struct.unpack_from("<I", content, place + 12)[0]
                covered = content[place + 12 : place + 100 + count * 36] if count < 200 else b""
                struct.pack_into("<I", content, place + 8, crc32c(bytes(covered)))
    return content


def use(folder: Path, schema: pa.Schema, chance: random.Random) -> int:
    """Every way in which files are read; how many records came of it."""
    seen = 0
    partition = Partition("t", 0, folder, schema, 4096, Disk())
    for committed in (True, False):
        with suppress(MillstreamError):
            for fetch in PartitionReader(partition, partition.start_offset(), committed=committed).stream():
                batch = Batch("t", 0, fetch.offsets, fetch.records)
                seen += len(batch.records())
                batch.to_polars()
    for look in (
        lambda: offset_at_time(partition, chance.choice([0, 1 << 50, (1 << 63) - 1])),
        lambda: newest_timestamp(partition),
        lambda: PartitionReader(partition, chance.randrange(60), committed=True).read(),
        lambda: partition.append([draft(_one(schema), 0)], sync=False),
        lambda: compact(partition, tombstones_before_us=0, forced=True),
        lambda: repair(folder, 0, schema, Disk()),
    ):
        with suppress(MillstreamError):
            look()
    return seen


def _one(schema: pa.Schema) -> pa.RecordBatch:
    columns = [pa.nulls(1, field.type) for field in schema]
    columns[2] = pa.array(np.zeros(1, np.int64)).cast(schema.field("timestamp").type)
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def main(folder: Path, seed: int, rounds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
    schemas = base(folder / "log")
    pristine = {topic: folder / "log" / "topics" / topic / "0" for topic in schemas}
    chance = random.Random(seed)
    seen = refused = 0
    for number in range(rounds):
        topic = chance.choice(list(schemas))
        work = folder / "work"
        shutil.copytree(pristine[topic], work)
        victims = sorted(p for p in work.iterdir() if p.suffix in (".seg", ".idx") or p.name in ("mark", "aborted"))
        victim = chance.choices(victims, [1 if path.suffix == ".idx" else 4 for path in victims])[0]
        made = mutated(victim.read_bytes(), chance)
        victim.write_bytes(sealed(victim.name, made) if chance.random() < 0.7 else made)
        print(f"round {number}: {topic} {victim.name}", file=sys.stderr, flush=True)
        signal.alarm(SECONDS_MAX)
        try:
            seen += use(work, schemas[topic], chance)
        except MillstreamError:
            refused += 1
        finally:
            signal.alarm(0)
            shutil.rmtree(work)
    print(f"{seen} records, {refused} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))

"""What a job would get out of a source, gathered."""

import pyarrow as pa

from millstream.records import batch_to_rows


def slabs(source, start=None, end=None, tasks=1):
    start = source.earliest() if start is None else start
    end = source.latest() if end is None else end
    return [slab for task in source.slices(start, end, tasks) for slice in task for slab in source.read(slice)]


def rows(source, start=None, end=None, tasks=1):
    found = []
    for slab in slabs(source, start, end, tasks):
        assert slab.rows.num_rows == len(slab.offsets)
        assert slab.rows.schema.equals(source.schema.arrow)
        for batch in slab.rows.combine_chunks().to_batches():
            found += batch_to_rows(batch)
    return found


def offsets(source, **range_):
    return [int(offset) for slab in slabs(source, **range_) for offset in slab.offsets]


def dead(source, **range_):
    letters = [slab.dead for slab in slabs(source, **range_) if slab.dead is not None]
    return pa.concat_tables(letters).to_pylist() if letters else []

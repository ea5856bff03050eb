"""Files as a source: each file once, in order, the same again on replay, whatever else happens in the folder."""

import gzip
import json
import os

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.reading import dead, offsets, rows, slabs
from millstream.connectors.files.endpoint import files
from millstream.errors import DamagedLog, InvalidInput, NotFound

SCORES = "user string, score int"


@pytest.fixture
def inbox(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    return folder


def scores(count, first=0):
    return [{"user": f"u{i}", "score": i} for i in range(first, first + count)]


def write(path, values, format="json", at=None, **settings):
    schema = pa.schema([("user", pa.string()), ("score", pa.int32())])
    if format == "json":
        path.write_text("".join(json.dumps(value) + "\n" for value in values))
    elif format == "csv":
        path.write_text("user,score\n" + "".join(f"{value['user']},{value['score']}\n" for value in values))
    elif format == "parquet":
        pq.write_table(pa.Table.from_pylist(values, schema), path, **settings)
    else:
        fields = [{"name": "user", "type": "string"}, {"name": "score", "type": "int"}]
        with path.open("wb") as file:
            fastavro.writer(file, {"type": "record", "name": "Score", "fields": fields}, values)
    if at is not None:
        os.utime(path, (at, at))
    return path


@pytest.mark.parametrize("format", ["json", "csv", "parquet", "avro"])
def test_every_format_gives_the_rows_that_were_written(inbox, open_, format):
    write(inbox / "a", scores(3), format)
    source = open_(files(inbox, format), "score int, user string, team string")
    assert rows(source) == [{**value, "team": None} for value in scores(3)]


def test_files_come_in_order_of_time_and_name(inbox, open_):
    for name, first, at in (("c", 0, 100), ("b", 2, 200), ("a", 1, 200), ("d", 3, 300)):
        write(inbox / name, scores(1, first), at=at)
    source = open_(files(inbox, "json"), SCORES)
    assert [row["score"] for row in rows(source)] == [0, 1, 2, 3]
    found = offsets(source)
    assert found == sorted(set(found))


def test_a_file_found_later_comes_later_whatever_its_time(inbox, open_):
    source = open_(files(inbox, "json"), SCORES)
    write(inbox / "b", scores(1, 1), at=200)
    assert source.latest() == {"files": 1}
    write(inbox / "a", scores(1, 0), at=100)
    assert source.latest() == {"files": 2}
    assert [row["score"] for row in rows(source)] == [1, 0]


def test_what_was_seen_is_the_same_after_a_restart(inbox, open_):
    write(inbox / "b", scores(2, 5), at=200)
    first = open_(files(inbox, "json"), SCORES)
    assert first.latest() == {"files": 1}
    write(inbox / "a", scores(1), at=100)
    again = open_(files(inbox, "json"), SCORES)
    assert again.latest() == {"files": 2}
    assert rows(again, {"files": 0}, {"files": 1}) == scores(2, 5)
    assert rows(again, {"files": 1}, {"files": 2}) == scores(1)


def test_a_worker_reads_what_the_planner_found_since_it_was_opened(inbox, open_):
    worker = open_(files(inbox, "json"), SCORES)
    planner = open_(files(inbox, "json"), SCORES)
    write(inbox / "a", scores(2))
    ((slice,),) = planner.slices({"files": 0}, planner.latest(), 4)
    (slab,) = worker.read(slice)
    assert slab.rows.column("score").to_pylist() == [0, 1]


def test_a_torn_entry_is_rewritten(inbox, open_, tmp_path):
    write(inbox / "a", scores(1), at=100)
    open_(files(inbox, "json"), SCORES).latest()
    journal = tmp_path / "kept" / "in" / "files.journal"
    whole = journal.read_bytes()
    journal.write_bytes(whole + b'["/somewhere/b",12')
    write(inbox / "b", scores(1, 1), at=200)
    again = open_(files(inbox, "json"), SCORES)
    assert again.latest() == {"files": 2}
    assert [row["score"] for row in rows(again)] == [0, 1]
    assert journal.read_bytes().startswith(whole)
    assert len(journal.read_bytes().splitlines()) == 2


def test_a_damaged_journal_is_reported(inbox, open_, tmp_path):
    write(inbox / "a", scores(1))
    open_(files(inbox, "json"), SCORES).latest()
    (tmp_path / "kept" / "in" / "files.journal").write_bytes(b"nonsense\n")
    with pytest.raises(DamagedLog, match="line 1 of the journal"):
        open_(files(inbox, "json"), SCORES).latest()


def test_hidden_and_unfinished_files_are_skipped(inbox, open_):
    for name in (".a", "_b", "c.tmp"):
        write(inbox / name, scores(1))
    (inbox / "folder").mkdir()
    source = open_(files(inbox, "json"), SCORES)
    assert source.latest() == {"files": 0}
    (inbox / "c.tmp").rename(inbox / "c")
    assert source.latest() == {"files": 1}


def test_a_glob_names_files_in_several_folders(inbox, open_):
    for folder in ("x", "y", "_z"):
        (inbox / folder).mkdir()
        write(inbox / folder / "a.json", scores(1))
        write(inbox / folder / "a.txt", scores(1))
    assert len(rows(open_(files(f"{inbox}/*/*.json", "json"), SCORES))) == 2


def test_a_missing_folder_is_refused(inbox, open_):
    with pytest.raises(NotFound, match="no such folder"):
        open_(files(inbox / "nowhere", "json"), SCORES).latest()


def test_files_per_batch_bounds_a_batch_and_a_limit_of_rows_does_not(inbox, open_):
    for number in range(5):
        write(inbox / str(number), scores(10))
    source = open_(files(inbox, "json", files_per_batch=2), SCORES)
    assert source.limited(source.earliest(), 1) == {"files": 2}
    assert source.limited({"files": 4}, 1) == {"files": 5}
    assert source.limited({"files": 5}, 1) == {"files": 5}
    assert open_(files(inbox, "json"), SCORES, name="all").limited({"files": 0}, 1) == {"files": 5}


# ---------------------------------------------------------------- what cannot be read


def test_bad_lines_are_dead_letters_with_the_number_of_their_line(inbox, open_):
    (inbox / "a.json").write_text('{"user":"a","score":1}\n\n{"score"\n{"user":"b","score":2}\n')
    source = open_(files(inbox, "json"), SCORES)
    assert [row["user"] for row in rows(source)] == ["a", "b"]
    (letter,) = dead(source)
    assert (letter["topic"], letter["offset"], letter["value"]) == ("a.json", 3, b'{"score"')


def test_csv_columns_are_found_by_the_header_and_quotes_may_hold_line_breaks(inbox, open_):
    (inbox / "a.csv").write_text('extra,score,user\nx,1,"two\nlines"\nx,wrong,b\nx,3,c\n')
    source = open_(files(inbox, "csv"), SCORES)
    assert rows(source) == [{"user": "two\nlines", "score": 1}, {"user": "c", "score": 3}]
    (letter,) = dead(source)
    assert (letter["topic"], letter["offset"], letter["value"]) == ("a.csv", 4, b"x,wrong,b")


def test_a_quote_that_is_never_closed_costs_only_its_line(inbox, open_):
    (inbox / "a.csv").write_text('user,score\na,1\n"b,2\nc,3\n')
    source = open_(files(inbox, "csv"), SCORES)
    assert [row["user"] for row in rows(source)] == ["a", "c"]
    assert [letter["offset"] for letter in dead(source)] == [3]


def test_packed_lines_are_unpacked(inbox, open_):
    with gzip.open(inbox / "a.json.gz", "wt") as file:
        file.write('{"user":"a","score":1}\n')
    assert rows(open_(files(inbox, "json"), SCORES)) == [{"user": "a", "score": 1}]


@pytest.mark.parametrize("format", ["parquet", "avro"])
def test_a_file_of_another_format_is_one_dead_letter(inbox, open_, format):
    (inbox / "a").write_text("not that at all")
    write(inbox / "b", scores(1), format)
    source = open_(files(inbox, format), SCORES)
    assert rows(source) == scores(1)
    (letter,) = dead(source)
    assert letter["topic"] == "a"
    assert letter["reason"].lower().startswith("not a")
    assert format in letter["reason"].lower()


def test_an_avro_file_cut_short_gives_what_can_be_read_and_a_dead_letter(inbox, open_):
    whole = write(inbox / "a", scores(5000), "avro").read_bytes()
    (inbox / "a").write_bytes(whole[: len(whole) * 2 // 3])
    source = open_(files(inbox, "avro"), SCORES)
    found = rows(source)
    assert found == scores(len(found))
    (letter,) = dead(source)
    assert letter["offset"] == len(found)


def test_a_parquet_file_with_damage_inside_gives_what_can_be_read_and_a_dead_letter(inbox, open_):
    path = write(inbox / "a", scores(20_000), "parquet", row_group_size=10_000, compression="gzip")
    start = pq.read_metadata(path).row_group(1).column(0).data_page_offset
    content = bytearray(path.read_bytes())
    content[start : start + 200] = bytes(200)
    path.write_bytes(content)
    source = open_(files(inbox, "parquet"), SCORES)
    found = rows(source)
    assert found == scores(len(found))
    assert len(found) <= 10_000
    (letter,) = dead(source)
    assert letter["offset"] == len(found)
    assert "cannot be read" in letter["reason"]


def test_packed_lines_cut_short_give_what_can_be_read_and_a_dead_letter(inbox, open_):
    packed = gzip.compress("".join(json.dumps(value) + "\n" for value in scores(50_000)).encode())
    (inbox / "a.gz").write_bytes(packed[: len(packed) * 2 // 3])
    source = open_(files(inbox, "json"), SCORES)
    found = rows(source)
    assert found == scores(len(found))
    assert len(found) >= 20_000
    (letter,) = dead(source)
    assert letter["offset"] == len(found) + 1


def test_names_that_are_not_text_are_names(inbox, open_):
    write(inbox / os.fsdecode(b"\xff.json"), scores(1))
    source = open_(files(inbox, "json"), SCORES)
    assert rows(source) == scores(1)
    assert rows(open_(files(inbox, "json"), SCORES), {"files": 0}, {"files": 1}) == scores(1)


@pytest.mark.parametrize("format", ["csv", "parquet"])
def test_a_required_column_that_is_missing_is_refused(inbox, open_, format):
    write(inbox / "a", scores(1), format)
    with pytest.raises(InvalidInput, match=r"no column 'team'(?s:.*)user, score"):
        rows(open_(files(inbox, format), "team string not null"))


def test_a_null_in_a_not_null_column_is_a_dead_letter(inbox, open_):
    write(inbox / "a", [{"user": None, "score": 1}, {"user": "b", "score": 2}], "parquet")
    source = open_(files(inbox, "parquet"), "user string not null, score int")
    assert rows(source) == [{"user": "b", "score": 2}]
    assert [(letter["offset"], letter["value"]) for letter in dead(source)] == [(0, b'{"user":null,"score":1}')]


def test_a_column_whose_type_would_lose_values_is_refused(inbox, open_):
    write(inbox / "a", scores(1), "parquet")
    with pytest.raises(InvalidInput, match="'score' is int in the file and cannot be read as string"):
        rows(open_(files(inbox, "parquet"), "score string"))


@pytest.mark.parametrize(("change", "message"), [("delete", "the file was deleted"), ("append", "has changed")])
def test_a_file_that_vanished_or_changed_raises(inbox, open_, change, message):
    path = write(inbox / "a", scores(2))
    source = open_(files(inbox, "json"), SCORES)
    end = source.latest()
    if change == "delete":
        path.unlink()
    else:
        path.write_text(path.read_text() + '{"user":"c","score":1}\n')
    with pytest.raises(InvalidInput, match=message):
        rows(source, {"files": 0}, end)


# ---------------------------------------------------------------- slices


def test_row_groups_of_a_large_file_are_spread_over_tasks(inbox, open_):
    write(inbox / "a", scores(400_000), "parquet", row_group_size=25_000)
    write(inbox / "b", scores(10, 7), "parquet")
    source = open_(files(inbox, "parquet"), SCORES)
    tasks = source.slices({"files": 0}, source.latest(), 4)
    assert len(tasks) == 4
    sizes = [sum(slab.rows.num_rows for slice in task for slab in source.read(slice)) for task in tasks]
    assert sum(sizes) == 400_010
    assert max(sizes) <= 1.3 * min(sizes)
    whole = [slab.rows.column("score").to_pylist() for slab in slabs(source, tasks=4)]
    assert [score for part in whole for score in part] == [*range(400_000), *range(7, 17)]
    found = offsets(source, tasks=4)
    assert found == sorted(set(found))
    assert found == offsets(source, tasks=1)


def test_files_are_spread_over_tasks(inbox, open_):
    for number in range(6):
        write(inbox / str(number), scores(100, number * 100), at=number)
    source = open_(files(inbox, "json"), SCORES)
    tasks = source.slices({"files": 0}, source.latest(), 3)
    assert [len(task) for task in tasks] == [2, 2, 2]
    assert rows(source, tasks=3) == scores(600)


def test_no_files_give_no_slices(inbox, open_):
    source = open_(files(inbox, "json"), SCORES)
    assert source.slices({"files": 0}, source.latest(), 3) == []


def test_waiting_ends_with_a_new_file(inbox, open_):
    source = open_(files(inbox, "json"), SCORES)
    assert not source.wait({"files": 0}, 0.0)
    write(inbox / "a", scores(1))
    assert source.wait({"files": 0}, 60.0)


def test_files_have_no_position_by_time(inbox, open_):
    from datetime import UTC, datetime

    with pytest.raises(InvalidInput, match="'earliest' or 'latest'"):
        open_(files(inbox, "json"), SCORES).at(datetime.now(UTC))

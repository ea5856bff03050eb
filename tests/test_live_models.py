"""Models that change while rows are scored: small transcripts on every runner, and models in a topic."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import millstream as ms
from millstream.errors import InvalidInput, InvalidPlan
from millstream.log import EmbeddedLog
from millstream.plan.models.formats import model_of
from millstream.plan.models.live_models import Models
from millstream.plan.stream import Stream
from millstream.testing import Add, Batch
from test_learning import onnx_model
from transcripts import play

SCHEMAS = {"rows": "n int, x double, y double", "models": "format string, content binary"}
transcript = pytest.mark.transcripts("reference", "local", "spark")


class Given(Models):
    """Models of a test's own stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    def as_stream(self, flow: Any) -> Stream:
        return self._stream


def build(rows: Any, models: Any) -> Any:
    made = rows.predict(Given(models), ["x", "y"], into="score", name="scored")
    return {"made": made, "dead": made.dead}


def row(*numbers: int) -> Add:
    return Add([{"n": n, "x": float(n), "y": 1.0} for n in numbers], to="rows")


def coefficients(*weights: float, **more: Any) -> Add:
    content = json.dumps({"coefficients": weights, **more}).encode()
    return Add([{"format": "coefficients", "content": content}], to="models")


def scores(step: Any) -> list[tuple[int, float | None]]:
    return sorted((each["n"], each["score"]) for each in step["made"])


@transcript
@pytest.mark.on_spark("more")
def test_rows_are_scored_with_the_newest_model() -> None:
    out = play(
        build,
        [
            row(1),
            coefficients(2, 1),
            row(1, 2, 3),
            Batch([row(4), coefficients(1, 0, intercept=0.5)]),
            row(5),
            Add([{"format": "onnx", "content": onnx_model()}], to="models"),
            row(6),
        ],
        schema=SCHEMAS,
    )
    assert [scores(step) for step in out] == [
        [(1, None)],
        [],
        [(1, 3.0), (2, 5.0), (3, 7.0)],
        [(4, 4.5)],
        [(5, 5.5)],
        [],
        [(6, 13.0)],
    ]


@transcript
def test_what_holds_code_or_is_no_model_is_refused_and_the_one_before_stays() -> None:
    wrong: list[dict[str, Any]] = [
        {"format": "pickle", "content": pickle.dumps(print)},
        {"format": "onnx", "content": pickle.dumps(print)},
        {"format": "coefficients", "content": b'{"coefficients": ["1"]}'},
        {"format": "coefficients", "content": b"[]"},
        {"format": "coefficients", "content": b'{"coefficients": [1], "link": []}'},
        {"format": "coefficients", "content": b'{"coefficients": [1' + b"0" * 400 + b"]}"},
        {"format": None, "content": None},
    ]
    out = play(build, [coefficients(1, 1), Add(wrong, to="models"), row(1)], schema=SCHEMAS)
    assert scores(out[-1]) == [(1, 2.0)]


@transcript
def test_rows_that_the_model_fails_on_are_dead_letters() -> None:
    out = play(build, [coefficients(1, 1, 1), row(1, 2), coefficients(0, 0, link="logistic"), row(3)], schema=SCHEMAS)
    assert (
        sorted(letter["reason"] for letter in out[1]["dead"])
        == ["scored: ValueError: the model has 3 coefficients for 2 features"] * 2
    )
    assert scores(out[1]) == []
    assert scores(out[3]) == [(3, 0.5)]


@pytest.mark.parametrize("location", ["weights.bin", "../weights.bin", "/weights.bin"])
def test_a_model_that_names_a_file_is_refused(
    location: str, log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: a model from a topic reads no file. Method: the file is there, where a library might look for it."""
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    for folder in (tmp_path, tmp_path / "inner"):
        np.array([[2.0], [1.0]], np.float32).tofile(folder / "weights.bin")
    model = onnx.load_from_string(onnx_model())
    weights = model.graph.initializer[0]
    weights.ClearField("raw_data")
    weights.data_location = onnx.TensorProto.EXTERNAL
    at = str(tmp_path / "weights.bin") if location.startswith("/") else location
    for key, value in (("location", at), ("offset", "0"), ("length", "8")):
        weights.external_data.add(key=key, value=value)
    with ms.models("risk", log=log) as stored, pytest.raises(InvalidInput, match="not a model in ONNX"):
        stored.put(model.SerializeToString())
    with pytest.raises(InvalidInput, match="not a model in ONNX"):
        model_of("onnx", model.SerializeToString())


def test_models_are_put_into_a_topic(log: EmbeddedLog, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx_model())
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(print))
    with ms.models("risk", log=log) as stored:
        stored.put({"coefficients": [1, 2], "intercept": 3})
        stored.put(tmp_path / "model.onnx")
        for wrong, mistake in (
            (tmp_path / "model.pkl", "a pickle is refused"),
            (tmp_path / "missing.onnx", "cannot be read"),
            (b"nothing", "not a model in ONNX"),
            ({"coefficients": []}, "coefficients is wrong"),
            ({"coefficients": [1], "link": "magic"}, "coefficients is wrong"),
            (print, "not a model that can be stored"),
        ):
            with pytest.raises(InvalidInput, match=mistake):
                stored.put(wrong)  # type: ignore[arg-type]
        with log.consumer("risk") as consumer:
            assert [record.value["format"] for record in consumer.until_caught_up()] == ["coefficients", "onnx"]
        rows = ms.Flow("scores", log=log.path).read("rows", SCHEMAS["rows"])
        assert rows.predict(stored, ["x", "y"]).schema.ddl == "n int, x double, y double, prediction double"
    log.create_topic("others", schema="n int")
    with pytest.raises(InvalidInput, match="does not hold models"):
        ms.models("others", log=log)


def test_a_flow_reads_models_from_its_own_log(tmp_path: Path) -> None:
    with ms.models("risk", log=tmp_path / "one") as stored:
        rows = ms.Flow("scores", log=tmp_path / "other").read("rows", SCHEMAS["rows"])
        with pytest.raises(InvalidInput, match="the models are in the log"):
            rows.predict(stored, ["x", "y"])
        totals = rows.group_by("n").agg(x=ms.sum("x"))
        with pytest.raises(InvalidInput, match="needs a stream"):
            totals.predict(stored, "x")
        timed = ms.Flow("sums", log=tmp_path / "one").read("rows", "x double, at timestamp", event_time="at")
        often = timed.key_by().window(ms.fixed("1 minute")).trigger(ms.each()).retracting().agg(x=ms.sum("x"))
        with pytest.raises(InvalidPlan, match="may be retracted, and the model may have changed by then"):
            often.predict(stored, "x")

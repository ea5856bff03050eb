"""The steps of a stream that match stored queries and apply models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast

from millstream.plan.shown.viewed import Viewed

if TYPE_CHECKING:
    from millstream.plan.search.matching import Queries, QueryMatches
    from millstream.plan.stream import Stream
    from millstream.plan.tables import Table


class Searching(Viewed):
    """A stream whose rows may be documents, or what a model knows about."""

    def match_queries(
        self,
        queries: Table | Queries,
        text: str | Sequence[str],
        *,
        analysers: str | Mapping[str, str] = "standard",
        score: bool = False,
        highlight: bool = False,
        history: str | timedelta | None = None,
        name: str | None = None,
    ) -> QueryMatches:
        """Matches each row with stored queries, which may change while the job runs: a row for each query that matches.

        `queries` is `ms.queries(…)`, or a table with the key `id` and a column `query`. `text` names the fields that
        are searched by their words, and that words without a field are looked for in. `analysers` is a language, such
        as "english", or one by field. `score` and `highlight` add columns. `history` is how long rows are held for
        queries that are put with `since=`; with "log", such queries read their topics again. `.dead` has the queries
        that are wrong.
        """
        from millstream.plan.search.matching import match_queries

        stream = cast("Stream", self)
        return match_queries(stream, queries, text, analysers, history, name, score=score, highlight=highlight)

    def predict(
        self,
        model: Any,
        features: str | Sequence[str],
        *,
        into: str = "prediction",
        type: str = "double",
        name: str | None = None,
    ) -> Stream:
        """Adds the prediction of a model, computed for whole batches from the columns in `features`.

        `model` is a function of a polars frame that returns a value for each row, a model with a method `predict` as
        those of scikit-learn, or an ONNX file, given by its path or its bytes. With `ms.models(topic)`, it is the
        newest model of a topic: a new one is used without a restart, and the prediction is null before the first one.
        `type` is that of the new column. Rows that the model fails on go to `.dead`.
        """
        from millstream.plan.models.predicting import predict

        return predict(cast("Stream", self), model, features, into, type, name)

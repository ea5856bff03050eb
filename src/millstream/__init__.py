"""Millstream: a durable log and the Dataflow model in one Python package, on Spark."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from millstream import errors
    from millstream.alerts.targets import command, email, slack
    from millstream.asking import ask
    from millstream.bridges.amqp.sink import amqp
    from millstream.bridges.amqp1.sink import amqp1
    from millstream.bridges.aws.sinks import kinesis, sns, sqs
    from millstream.bridges.http.push_sink import push
    from millstream.bridges.http.webhook_sink import webhook
    from millstream.bridges.mqtt.sink import mqtt
    from millstream.bridges.peers.nanomsg_sink import nanomsg
    from millstream.bridges.peers.zeromq_sink import zeromq
    from millstream.bridges.stomp.sink import stomp
    from millstream.calling import client
    from millstream.capture.adding import add_to_capture
    from millstream.capture.debezium import debezium
    from millstream.capture.endpoints import mariadb_changes, postgres_changes, sqlite_changes
    from millstream.capture.outbox import outbox
    from millstream.capture.topics import captured
    from millstream.capture.whole_transactions import captured_transactions
    from millstream.connectors.alerts import alert
    from millstream.connectors.console import console
    from millstream.connectors.databases.endpoints import postgres, sqlite
    from millstream.connectors.databases.two_phase import two_phase
    from millstream.connectors.discard import discard
    from millstream.connectors.files.endpoint import files
    from millstream.connectors.files.rotating import rotating_file
    from millstream.connectors.foreach import foreach_batch
    from millstream.connectors.generated import generate
    from millstream.connectors.kafka.endpoint import kafka
    from millstream.connectors.lakes.endpoints import delta_table, iceberg
    from millstream.connectors.memory import memory
    from millstream.connectors.rate import rate
    from millstream.connectors.registry import connector
    from millstream.connectors.socket_lines import socket
    from millstream.connectors.topic.endpoint import topic
    from millstream.connectors.topic.queue_endpoint import queue
    from millstream.connectors.topic.several_endpoint import topics
    from millstream.copies.endpoints import http_rows, key_files, opensearch, redis, search_index
    from millstream.errors import MillstreamError
    from millstream.events.aggregate import Aggregate, event
    from millstream.events.event import Append, Event
    from millstream.events.opening import event_store
    from millstream.events.upcasters import upcaster
    from millstream.jobs.job import Job
    from millstream.log import Batch, Broker, Message, Record, connect
    from millstream.plan.aggregates.approximate import (
        approx_count,
        approx_distinct,
        approx_intersection,
        approx_quantiles,
        approx_set,
        approx_top,
    )
    from millstream.plan.aggregates.basic import (
        avg,
        collect,
        collect_list,
        combine,
        count,
        count_distinct,
        distinct_count,
        first,
        last,
        max,
        mean,
        min,
        std,
        stddev,
        stddev_samp,
        sum,
        top,
    )
    from millstream.plan.aggregates.conditions import all, any, bool_and, bool_or, count_if, some
    from millstream.plan.aggregates.picks import collect_set, max_by, min_by
    from millstream.plan.aggregates.sampling import bloom, sample
    from millstream.plan.aggregates.statistics import median, mode, percentile, stddev_pop, var_pop, var_samp, variance
    from millstream.plan.apps import App, app
    from millstream.plan.flow import Flow
    from millstream.plan.models.learning import ewma, kmeans, seasonal, zscore
    from millstream.plan.parameters import param
    from millstream.plan.patterns.pattern import Pattern, alternatives, any_order, pattern
    from millstream.plan.shown.dashboards import dashboard, panel
    from millstream.plan.shown.masks import mask
    from millstream.plan.steps.process import Key
    from millstream.plan.steps.retries import retry
    from millstream.plan.stream import Stream
    from millstream.plan.tables import Table
    from millstream.plan.time.triggers import (
        after,
        after_count,
        after_watermark,
        all_of,
        at_expiry,
        each,
        every,
        first_of,
        in_order,
        repeatedly,
    )
    from millstream.plan.time.watermarks import ascending, bounded, custom, punctuated
    from millstream.plan.time.windows import (
        calendar,
        closed_by,
        delta_window,
        everything,
        fixed,
        rows,
        sessions,
        sliding,
    )
    from millstream.provenance.why import why
    from millstream.stored_models import models
    from millstream.stored_queries import queries
    from millstream.supervision.client import supervisor
    from millstream.views import merged

# The names that `import millstream as ms` provides, and their modules: imported on first use, so that the command line
# is fast.
_NAMES = {
    "millstream.bridges.amqp1.sink": "amqp1",
    "millstream.bridges.amqp.sink": "amqp",
    "millstream.bridges.aws.sinks": "kinesis sns sqs",
    "millstream.bridges.mqtt.sink": "mqtt",
    "millstream.bridges.peers.nanomsg_sink": "nanomsg",
    "millstream.bridges.http.push_sink": "push",
    "millstream.bridges.stomp.sink": "stomp",
    "millstream.bridges.http.webhook_sink": "webhook",
    "millstream.bridges.peers.zeromq_sink": "zeromq",
    "millstream.capture.adding": "add_to_capture",
    "millstream.capture.endpoints": "mariadb_changes postgres_changes sqlite_changes",
    "millstream.capture.outbox": "outbox",
    "millstream.capture.debezium": "debezium",
    "millstream.capture.topics": "captured",
    "millstream.capture.whole_transactions": "captured_transactions",
    "millstream.alerts.targets": "command email slack",
    "millstream.connectors.alerts": "alert",
    "millstream.asking": "ask",
    "millstream.calling": "client",
    "millstream.connectors.console": "console",
    "millstream.connectors.databases.endpoints": "postgres sqlite",
    "millstream.connectors.databases.two_phase": "two_phase",
    "millstream.connectors.discard": "discard",
    "millstream.connectors.files.endpoint": "files",
    "millstream.connectors.files.rotating": "rotating_file",
    "millstream.connectors.foreach": "foreach_batch",
    "millstream.connectors.generated": "generate",
    "millstream.connectors.kafka.endpoint": "kafka",
    "millstream.connectors.lakes.endpoints": "delta_table iceberg",
    "millstream.connectors.memory": "memory",
    "millstream.connectors.rate": "rate",
    "millstream.connectors.registry": "connector",
    "millstream.connectors.socket_lines": "socket",
    "millstream.connectors.topic.endpoint": "topic",
    "millstream.connectors.topic.queue_endpoint": "queue",
    "millstream.connectors.topic.several_endpoint": "topics",
    "millstream.copies.endpoints": "http_rows key_files opensearch redis search_index",
    "millstream.errors": "MillstreamError",
    "millstream.events.aggregate": "Aggregate event",
    "millstream.events.event": "Append Event",
    "millstream.events.opening": "event_store",
    "millstream.events.upcasters": "upcaster",
    "millstream.jobs.job": "Job",
    "millstream.log": "Batch Broker Message Record connect",
    "millstream.plan.aggregates.basic": (
        "avg collect collect_list combine count count_distinct distinct_count first last "
        "max mean min std stddev stddev_samp sum top"
    ),
    "millstream.plan.apps": "App app",
    "millstream.plan.aggregates.approximate": (
        "approx_count approx_distinct approx_intersection approx_quantiles approx_set approx_top"
    ),
    "millstream.plan.aggregates.conditions": "all any bool_and bool_or count_if some",
    "millstream.plan.flow": "Flow",
    "millstream.plan.models.learning": "ewma kmeans seasonal zscore",
    "millstream.plan.patterns.pattern": "Pattern alternatives any_order pattern",
    "millstream.plan.shown.dashboards": "dashboard panel",
    "millstream.plan.shown.masks": "mask",
    "millstream.plan.parameters": "param",
    "millstream.plan.aggregates.picks": "collect_set max_by min_by",
    "millstream.plan.steps.process": "Key",
    "millstream.plan.steps.retries": "retry",
    "millstream.plan.aggregates.sampling": "bloom sample",
    "millstream.plan.aggregates.statistics": "median mode percentile stddev_pop var_pop var_samp variance",
    "millstream.plan.stream": "Stream",
    "millstream.plan.tables": "Table",
    "millstream.plan.time.triggers": (
        "after after_count after_watermark all_of at_expiry each every first_of in_order repeatedly"
    ),
    "millstream.plan.time.watermarks": "ascending bounded custom punctuated",
    "millstream.plan.time.windows": "calendar closed_by delta_window everything fixed rows sessions sliding",
    "millstream.provenance.why": "why",
    "millstream.stored_models": "models",
    "millstream.stored_queries": "queries",
    "millstream.supervision.client": "supervisor",
    "millstream.views": "merged",
}
_RENAMED = {"delta": "delta_window", "foreach": "foreach_batch", "never": "at_expiry"}
_SQL_NAMES = {
    "any_value": "first",
    "approx_count_distinct": "approx_distinct",
    "approx_percentile": "approx_quantiles",
    "array_agg": "collect_list",
    "first_value": "first",
    "last_value": "last",
    "percentile_approx": "approx_quantiles",
    "session_window": "sessions",
}
"""Names of Spark SQL for what has another name here."""
_HOME = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = [
    "Aggregate",
    "App",
    "Append",
    "Batch",
    "Broker",
    "Event",
    "Flow",
    "Job",
    "Key",
    "Message",
    "MillstreamError",
    "Pattern",
    "Record",
    "Stream",
    "Table",
    "add_to_capture",
    "after",
    "after_count",
    "after_watermark",
    "alert",
    "all",
    "all_of",
    "alternatives",
    "amqp",
    "amqp1",
    "any",
    "any_order",
    "app",
    "approx_count",
    "approx_distinct",
    "approx_intersection",
    "approx_quantiles",
    "approx_set",
    "approx_top",
    "ascending",
    "ask",
    "at_expiry",
    "avg",
    "bloom",
    "bool_and",
    "bool_or",
    "bounded",
    "calendar",
    "captured",
    "captured_transactions",
    "client",
    "closed_by",
    "collect",
    "collect_list",
    "collect_set",
    "combine",
    "command",
    "connect",
    "connector",
    "console",
    "count",
    "count_distinct",
    "count_if",
    "custom",
    "dashboard",
    "debezium",
    "delta_table",
    "delta_window",
    "discard",
    "distinct_count",
    "each",
    "email",
    "errors",
    "event",
    "event_store",
    "every",
    "everything",
    "ewma",
    "files",
    "first",
    "first_of",
    "fixed",
    "foreach_batch",
    "generate",
    "http_rows",
    "iceberg",
    "in_order",
    "kafka",
    "key_files",
    "kinesis",
    "kmeans",
    "last",
    "mariadb_changes",
    "mask",
    "max",
    "max_by",
    "mean",
    "median",
    "memory",
    "merged",
    "min",
    "min_by",
    "mode",
    "models",
    "mqtt",
    "nanomsg",
    "opensearch",
    "outbox",
    "panel",
    "param",
    "pattern",
    "percentile",
    "postgres",
    "postgres_changes",
    "punctuated",
    "push",
    "queries",
    "queue",
    "rate",
    "redis",
    "repeatedly",
    "retry",
    "rotating_file",
    "rows",
    "sample",
    "search_index",
    "seasonal",
    "sessions",
    "slack",
    "sliding",
    "sns",
    "socket",
    "some",
    "sqlite",
    "sqlite_changes",
    "sqs",
    "std",
    "stddev",
    "stddev_pop",
    "stddev_samp",
    "stomp",
    "sum",
    "supervisor",
    "top",
    "topic",
    "topics",
    "two_phase",
    "upcaster",
    "var_pop",
    "var_samp",
    "variance",
    "webhook",
    "why",
    "zeromq",
    "zscore",
]


def __getattr__(name: str) -> object:
    if name == "errors":
        return import_module("millstream.errors")
    if name in _RENAMED:
        raise AttributeError(f"millstream.{name} was renamed: use millstream.{_RENAMED[name]}")
    if name in _SQL_NAMES:
        raise AttributeError(f"there is no millstream.{name}: use millstream.{_SQL_NAMES[name]}")
    if name not in _HOME:
        raise AttributeError(f"module 'millstream' has no attribute '{name}'")
    found = getattr(import_module(_HOME[name]), name)
    globals()[name] = found  # found directly from now on
    return found


def __dir__() -> list[str]:
    return __all__

"""The queries of Nexmark as flows: each takes the streams persons, auctions and bids and gives the one to look at.

A bid counts for an auction from its start until it expires, both ends included. The start is the auction's own event
time, so "the auction as it was at the time of the bid" says the first half, and holds no bid longer than needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from generator import SCHEMAS

import millstream as ms
from millstream.plan.flow import Flow
from millstream.plan.stream import Stream
from millstream.plan.tables import Table

Query = Callable[..., Stream]
QUERIES: dict[str, Query] = {}
EVENT_TIME = "dateTime"
WATERMARK = ms.bounded("4 seconds")
SIDE_SCHEMA = "key long, value string"
SIDE_KEYS = 10_000
RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}
DAY = "date_format(dateTime, 'yyyy-MM-dd')"
CHANNEL_IDS = {"apple": 0, "google": 1, "facebook": 2, "baidu": 3}


def query(function: Query) -> Query:
    QUERIES[function.__name__] = function
    return function


def read(flow: Flow, watermark: Any = WATERMARK) -> dict[str, Stream]:
    """The three streams, from the topics of those names."""
    return {topic: flow.read(topic, schema, EVENT_TIME, watermark) for topic, schema in SCHEMAS.items()}


def build(name: str, flow: Flow, **settings: Any) -> Stream:
    """A query over the topics of a log."""
    return QUERIES[name](**read(flow), **settings)


def write_side(path: Path, keys: int = SIDE_KEYS) -> None:
    """The file that q13 joins with."""
    lines = ["key,value", *(f"{key},value {key}" for key in range(keys))]
    path.write_text("\n".join(lines) + "\n")


# ---------------------------------------------------------------- row by row


@query
def q0(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """All bids."""
    return bids.select("auction", "bidder", "price", "dateTime", "extra")


@query
def q1(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Prices in another currency."""
    return bids.select("auction", "bidder", price="0.908 * price", dateTime="dateTime", extra="extra")


@query
def q2(persons: Stream, auctions: Stream, bids: Stream, chosen: str = "auction % 123 = 0") -> Stream:
    """The bids on some auctions."""
    return bids.where(chosen).select("auction", "price")


@query
def q10(persons: Stream, auctions: Stream, bids: Stream, hour: str = "HH:mm") -> Stream:
    """Bids with date and time as text, for files that are filed by them."""
    texts = {"dt": DAY, "hm": f"date_format(dateTime, '{hour}')"}
    return bids.select("auction", "bidder", "price", "dateTime", "extra", **texts)


@query
def q13(persons: Stream, auctions: Stream, bids: Stream, side: Path) -> Stream:
    """Bids with a value out of a file."""
    values = bids.flow.table(ms.files(side, "csv"), SIDE_SCHEMA)
    keyed = bids.with_column("key", f"auction % {SIDE_KEYS}")
    return keyed.join(values, on="key").select("auction", "bidder", "price", "dateTime", "value")


@query
def q14(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Bids of a range of prices, with the time of day and a letter counted."""
    hour = "hour(dateTime)"
    return bids.where("0.908 * price > 1000000 and 0.908 * price < 50000000").select(
        "auction",
        "bidder",
        price="0.908 * price",
        bidTimeType=f"case when {hour} >= 8 and {hour} <= 18 then 'dayTime' "
        f"when {hour} <= 6 or {hour} >= 20 then 'nightTime' else 'otherTime' end",
        dateTime="dateTime",
        extra="extra",
        c_counts="length(extra) - length(replace(extra, 'c', ''))",
    )


@query
def q21(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Bids with the id of their channel: that of a known one, or the one in the url."""
    known = " ".join(f"when lower(channel) = '{name}' then '{number}'" for name, number in CHANNEL_IDS.items())
    found = "regexp_extract(url, '(&|^)channel_id=([^&]*)', 2)"
    named = bids.with_column("channel_id", f"case {known} else {found} end")
    return named.where("channel_id <> ''").select("auction", "bidder", "price", "channel", "channel_id")


@query
def q22(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The folders of the url."""
    parts = {f"dir{number}": f"split(url, '/')[{number + 2}]" for number in (1, 2, 3)}
    return bids.select("auction", "bidder", "price", "channel", **parts)


# ---------------------------------------------------------------- in windows


@query
def q5(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The auctions with most bids of the last 10 seconds, every 2 seconds; of equals all."""
    counts = (
        bids.key_by("auction")
        .window(ms.sliding("10 seconds", every="2 seconds"))
        .agg(num=ms.count())
        .select("auction", "num", starttime="window.start", endtime="window.end")
    )
    # Windows end every two seconds and a pane's event time lies just before that: two seconds hold one window's panes.
    windows = ms.fixed("2 seconds")
    most = counts.window(windows).agg(most=ms.max("num")).select("most")
    hot = counts.window(windows).join(most, on={"num": "most"}, how="semi")
    return hot.select("auction", "num", "starttime", "endtime")


@query
def q7(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The highest bids of each 10 seconds. Both ends count, so a bid right at an end may be in two."""
    highest = bids.window(ms.fixed("10 seconds")).agg(highest=ms.max("price")).select("highest")
    # The event time of a pane is a microsecond before the end of its window.
    won = bids.join(highest, on={"price": "highest"}, within=("-9.999999 seconds", "1 microsecond"))
    return won.select("auction", "price", "bidder", "dateTime", "extra")


@query
def q8(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The people who opened an auction in the 10 seconds in which they came."""
    sellers = auctions.select("seller")
    opened = persons.window(ms.fixed("10 seconds")).join(sellers, on={"id": "seller"}, how="semi")
    return opened.select("id", "name", starttime="window.start")


@query
def q11(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """How many bids each bidder made in each stretch of activity."""
    visits = bids.key_by("bidder").window(ms.sessions("10 seconds")).agg(bid_count=ms.count())
    return visits.select("bidder", "bid_count", starttime="window.start", endtime="window.end")


@query
def q12(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """How many bids of each bidder came in each 10 seconds of processing time."""
    came = bids.key_by("bidder").window(ms.fixed("10 seconds", time="processing")).agg(bid_count=ms.count())
    return came.select("bidder", "bid_count", starttime="window.start", endtime="window.end")


# ---------------------------------------------------------------- bids and their auctions


def in_time(auctions: Stream, bids: Stream) -> Stream:
    """The bids made while their auction was open, with the columns of the auction."""
    offered = bids.join(auctions.to_table(key="id"), on={"auction": "id"}, as_of="event_time", suffix="_auction")
    return offered.where("dateTime <= expires")


def prices_in_time(auctions: Stream, bids: Stream) -> Stream:
    """The same with what most questions are about: who sells what, and the price."""
    narrow = auctions.select("id", "seller", "category", "expires")
    return in_time(narrow, bids.select("auction", "price", "dateTime"))


@query
def q4(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The average of the highest bids of each category."""
    final = prices_in_time(auctions, bids).group_by("auction", "category").agg(final=ms.max("price"))
    return final.group_by("category").agg(final=ms.mean("final"))


@query
def q6(persons: Stream, auctions: Stream, bids: Stream, best: str = "price desc") -> Stream:
    """Of each auction that was bid on, the average of what its seller got for it and the ten before it."""
    sold = prices_in_time(auctions, bids).top(1, by=[best, "dateTime"], per="auction")
    sales = sold.group_by("seller").agg(sales=ms.collect("struct(dateTime, auction, price)"))
    return sales.flat_map(averages, "seller long, final double")


def averages(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    prices = [sale["price"] for sale in sorted(row["sales"], key=lambda sale: (sale["dateTime"], sale["auction"]))]
    for place in range(len(prices)):
        last = prices[max(0, place - 10) : place + 1]
        yield {"seller": row["seller"], "final": sum(last) / len(last)}


@query
def q9(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Each auction with its highest bid; of equals the first."""
    winning = in_time(auctions, bids).top(1, by=["price desc", "dateTime", "bidder", "extra"], per="auction")
    return winning.select(
        *("itemName", "description", "initialBid", "reserve", "expires", "seller", "category"),
        *("auction", "bidder", "price"),
        id="auction",
        dateTime="dateTime_auction",
        extra="extra_auction",
        bid_dateTime="dateTime",
        bid_extra="extra",
    )


# ---------------------------------------------------------------- tables


@query
def q3(persons: Stream, auctions: Stream, bids: Stream, states: str = "'OR', 'ID', 'CA'") -> Stream:
    """The people of some states with what they offer in one category."""
    offered = auctions.where("category = 10").select("id", "seller").to_table()
    people = persons.where(f"state in ({states})").select("id", "name", "city", "state").to_table()
    return offered.join(people, on={"seller": "id"}, suffix="_person").select("name", "city", "state", "id")


def ranked(made: str) -> dict[str, str]:
    """An expression for the bids of each rank alone, and null for others."""
    return {rank: f"case when {holds} then {made} end" for rank, holds in RANKS.items()}


def numbers_of_bids() -> dict[str, Any]:
    counts = {"total_bids": ms.count()}
    counts |= {f"{rank}_bids": ms.sum(f"case when {holds} then 1 else 0 end") for rank, holds in RANKS.items()}
    return counts


def numbers_of_people_and_auctions() -> dict[str, Any]:
    counts: dict[str, Any] = {}
    for column in ("bidder", "auction"):
        counts[f"total_{column}s"] = ms.distinct_count(column)
        counts |= {f"{rank}_{column}s": ms.distinct_count(made) for rank, made in ranked(column).items()}
    return counts


@query
def q15(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Per day: bids, people and auctions, by rank of price."""
    return bids.with_column("day", DAY).group_by("day").agg(**numbers_of_bids(), **numbers_of_people_and_auctions())


@query
def q16(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The same per channel and day, with the last minute."""
    return (
        bids.with_column("day", DAY)
        .group_by("channel", "day")
        .agg(
            minute=ms.max("date_format(dateTime, 'HH:mm')"),
            **numbers_of_bids(),
            **numbers_of_people_and_auctions(),
        )
    )


@query
def q17(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Per auction and day: bids by rank of price, and prices."""
    return (
        bids.with_column("day", DAY)
        .group_by("auction", "day")
        .agg(
            **numbers_of_bids(),
            min_price=ms.min("price"),
            max_price=ms.max("price"),
            avg_price=ms.mean("price"),
            sum_price=ms.sum("price"),
        )
    )


@query
def q18(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The last bid of each bidder on each auction."""
    return bids.top(1, by=["dateTime desc", "extra"], per=["bidder", "auction"])


@query
def q19(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The ten highest bids of each auction."""
    return bids.top(10, by=["price desc", "bidder", "dateTime", "extra"], per="auction", rank="rank_number")


@query
def q20(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The bids on auctions of one category, also those that came before the auction."""
    offered = auctions.where("category = 10").to_table()
    return bids.to_table().join(offered, on={"auction": "id"}, suffix="_auction")


# ---------------------------------------------------------------- more, by RisingWave


def counted(bids: Stream) -> Table:
    return bids.group_by("auction").agg(bid_count=ms.count())


@query
def q101(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """Every auction with its highest bid, if any."""
    highest = bids.group_by("auction").agg(highest=ms.max("price"))
    offered = auctions.select("id", "itemName").to_table()
    return offered.join(highest, on={"id": "auction"}, how="left").select("id", "itemName", "highest")


@query
def q102(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The auctions with at least the average number of bids of those that have any."""
    all_of_it = bids.group_by().agg(bids=ms.count(), auctions=ms.distinct_count("auction"))
    average = all_of_it.select(average="bids div auctions", same="1")
    counts = counted(bids).with_column("same", "1").join(average, on="same").where("bid_count >= average")
    offered = auctions.select("id", "itemName").to_table()
    return offered.join(counts, on={"id": "auction"}).select("id", "itemName", "bid_count")


@query
def q103(persons: Stream, auctions: Stream, bids: Stream, least: int = 20) -> Stream:
    """The auctions among those with many bids."""
    offered = auctions.select("id", "itemName").to_table()
    return offered.join(counted(bids).where(f"bid_count >= {least}"), on={"id": "auction"}, how="semi")


@query
def q104(persons: Stream, auctions: Stream, bids: Stream, least: int = 20) -> Stream:
    """The auctions not among those with few bids."""
    offered = auctions.select("id", "itemName").to_table()
    return offered.join(counted(bids).where(f"bid_count < {least}"), on={"id": "auction"}, how="anti")


@query
def q105(persons: Stream, auctions: Stream, bids: Stream, count: int = 1000) -> Stream:
    """The auctions with most bids."""
    offered = auctions.select("id", "itemName").to_table()
    counts = offered.join(counted(bids), on={"id": "auction"}).select("id", "itemName", "bid_count")
    return counts.top(count, by=["bid_count desc", "id"])


@query
def q106(persons: Stream, auctions: Stream, bids: Stream) -> Stream:
    """The lowest of the highest bids."""
    final = prices_in_time(auctions, bids).group_by("auction").agg(final=ms.max("price"))
    return final.group_by().agg(min_final=ms.min("final"))

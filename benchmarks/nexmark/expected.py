"""What each query has to give: the same question as one DuckDB statement over all events.

Results are bags of rows. Two bags are compared by `bag`, which is blind to the order of rows and columns, to time zones
and to the last digits of an average.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

DAY = "strftime(dateTime, '%Y-%m-%d')"
RANKED_BIDS = """count(*) as total_bids,
    count(*) filter (price < 10000) as rank1_bids,
    count(*) filter (price >= 10000 and price < 1000000) as rank2_bids,
    count(*) filter (price >= 1000000) as rank3_bids"""
RANKED_OTHERS = ", ".join(
    f"""count(distinct {column}) as total_{column}s,
    count(distinct {column}) filter (price < 10000) as rank1_{column}s,
    count(distinct {column}) filter (price >= 10000 and price < 1000000) as rank2_{column}s,
    count(distinct {column}) filter (price >= 1000000) as rank3_{column}s"""
    for column in ("bidder", "auction")
)
IN_TIME = """select b.*, a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime as opened, a.expires,
    a.seller, a.category, a.extra as auction_extra
    from bids b join auctions a on b.auction = a.id where b.dateTime between a.dateTime and a.expires"""
SETTINGS: dict[str, dict[str, Any]] = {
    "q2": {"chosen": "auction % 123 = 0"},
    "q3": {"states": "'OR', 'ID', 'CA'"},
    "q6": {"best": "price desc"},
    "q13": {"side": "side.csv"},
    "q103": {"least": 20},
    "q104": {"least": 20},
    "q105": {"count": 1000},
}
"""What can be said otherwise, and what holds if nothing is said."""

STATEMENTS = {
    "q0": "select auction, bidder, price, dateTime, extra from bids",
    "q1": "select auction, bidder, 0.908 * price as price, dateTime, extra from bids",
    "q2": "select auction, price from bids where {chosen}",
    "q3": """select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ({states})""",
    "q4": f"""select category, avg(final) as final
        from (select category, max(price) as final from ({IN_TIME}) group by id, category) group by category""",
    "q5": """with counts as (
            select auction, count(*) as num, starttime
            from (select auction, time_bucket(interval 2 seconds, dateTime) - back * interval 2 seconds as starttime
                  from bids, range(5) as spans(back))
            group by auction, starttime)
        select auction, num, starttime, starttime + interval 10 seconds as endtime
        from counts qualify num = max(num) over (partition by starttime)""",
    "q6": f"""select seller, avg(price) over (partition by seller order by dateTime, auction
            rows between 10 preceding and current row) as final
        from (select * from ({IN_TIME}) qualify row_number() over (partition by id order by {{best}}, dateTime) = 1)""",
    "q7": """select b.auction, b.price, b.bidder, b.dateTime, b.extra from bids b join (
            select max(price) as price, time_bucket(interval 10 seconds, dateTime) + interval 10 seconds as ends
            from bids group by ends) w
        on b.price = w.price where b.dateTime between w.ends - interval 10 seconds and w.ends""",
    "q8": """select distinct p.id, p.name, time_bucket(interval 10 seconds, p.dateTime) as starttime
        from persons p join auctions a on p.id = a.seller
        and time_bucket(interval 10 seconds, p.dateTime) = time_bucket(interval 10 seconds, a.dateTime)""",
    "q9": f"""select id, itemName, description, initialBid, reserve, opened as dateTime, expires, seller, category,
            auction_extra as extra, auction, bidder, price, dateTime as bid_dateTime, extra as bid_extra
        from ({IN_TIME})
        qualify row_number() over (partition by id order by price desc, dateTime, bidder, extra) = 1""",
    "q10": f"select auction, bidder, price, dateTime, extra, {DAY} as dt, strftime(dateTime, '%H:%M') as hm from bids",
    "q11": """with marked as (
            select bidder, dateTime,
            coalesce(dateTime - lag(dateTime) over w > interval 10 seconds, true)::int as begins
            from bids window w as (partition by bidder order by dateTime)),
        numbered as (select *, sum(begins) over (partition by bidder order by dateTime) as visit from marked)
        select bidder, count(*) as bid_count, min(dateTime) as starttime,
            max(dateTime) + interval 10 seconds as endtime
        from numbered group by bidder, visit""",
    "q12": """select bidder, count(*) as bid_count, time_bucket(interval 10 seconds, came) as starttime,
            time_bucket(interval 10 seconds, came) + interval 10 seconds as endtime
        from arrivals group by bidder, time_bucket(interval 10 seconds, came)""",
    "q13": """select auction, bidder, price, dateTime, s.value
        from bids b join read_csv('{side}', header = true, types = {{'key': 'BIGINT', 'value': 'VARCHAR'}}) s
        on b.auction % 10000 = s.key""",
    "q14": """select auction, bidder, 0.908 * price as price,
            case when hour(dateTime) >= 8 and hour(dateTime) <= 18 then 'dayTime'
                 when hour(dateTime) <= 6 or hour(dateTime) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
        from bids where 0.908 * price > 1000000 and 0.908 * price < 50000000""",
    "q15": f"select {DAY} as day, {RANKED_BIDS}, {RANKED_OTHERS} from bids group by day",
    "q16": f"""select channel, {DAY} as day, max(strftime(dateTime, '%H:%M')) as minute, {RANKED_BIDS}, {RANKED_OTHERS}
        from bids group by channel, day""",
    "q17": f"""select auction, {DAY} as day, {RANKED_BIDS}, min(price) as min_price, max(price) as max_price,
        avg(price) as avg_price, sum(price)::bigint as sum_price from bids group by auction, day""",
    "q18": """select * from bids
        qualify row_number() over (partition by bidder, auction order by dateTime desc, extra) = 1""",
    "q19": """select *, row_number() over (partition by auction order by price desc, bidder, dateTime, extra)
        as rank_number from bids qualify rank_number <= 10""",
    "q20": """select b.*, a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime as dateTime_auction,
            a.expires, a.seller, a.category, a.extra as extra_auction
        from bids b join auctions a on b.auction = a.id where a.category = 10""",
    "q21": r"""select auction, bidder, price, channel, case lower(channel)
            when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3'
            else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
        from bids where channel_id <> ''""",
    "q22": """select auction, bidder, price, channel, split_part(url, '/', 4) as dir1, split_part(url, '/', 5) as dir2,
        split_part(url, '/', 6) as dir3 from bids""",
    "q101": """select id, itemName, highest
        from auctions left join (select auction, max(price) as highest from bids group by auction) on id = auction""",
    "q102": """select id, itemName, count(*) as bid_count from auctions join bids on id = auction group by id, itemName
        having count(*) >= (select count(*) // count(distinct auction) from bids)""",
    "q103": """select id, itemName from auctions
        where id in (select auction from bids group by auction having count(*) >= {least})""",
    "q104": """select id, itemName from auctions
        where id not in (select auction from bids group by auction having count(*) < {least})""",
    "q105": """select id, itemName, count(*) as bid_count from auctions join bids on id = auction group by id, itemName
        order by bid_count desc, id limit {count}""",
    "q106": f"select min(final) as min_final from (select max(price) as final from ({IN_TIME}) group by id)",
}


def expected(name: str, events: Mapping[str, pa.Table], **settings: str | int | Path) -> list[dict[str, Any]]:
    """The rows of a query. `events` has persons, auctions and bids; for q12 arrivals too: bids with a column `came`."""
    with duckdb.connect() as database:
        database.execute("set TimeZone = 'UTC'")
        for topic, given in events.items():
            database.register(topic, without_zones(given))
        statement = STATEMENTS[name].format(**(SETTINGS.get(name, {}) | settings))
        rows: list[dict[str, Any]] = database.sql(statement).to_arrow_table().to_pylist()
        return rows


def without_zones(rows: pa.Table) -> pa.Table:
    fields = [
        field.with_type(pa.timestamp("us")) if pa.types.is_timestamp(field.type) else field for field in rows.schema
    ]
    return rows.cast(pa.schema(fields))


# ---------------------------------------------------------------- bags of rows


def bag(rows: Iterable[Mapping[str, Any]], weight: str | None = None) -> Counter[tuple[tuple[str, str], ...]]:
    """How often each row is there; with `weight`, the sum of that column, which rows that come may be without."""
    found: Counter[tuple[tuple[str, str], ...]] = Counter()
    for row in rows:
        times = 1 if weight is None else row.get(weight, 1)
        found[tuple(sorted((name, said(value)) for name, value in row.items() if name != weight))] += times
    return Counter({row: times for row, times in found.items() if times})


def said(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.12g}"
    if isinstance(value, Decimal):
        return f"{value:.3f}"
    if isinstance(value, datetime):
        return (value if value.tzinfo is None else value.astimezone(UTC).replace(tzinfo=None)).isoformat()
    return str(value)

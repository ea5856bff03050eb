"""The queries as plain Structured Streaming, the best a PySpark user could write: SQL over streams, run by the JVM.

Where Spark refuses the question as it is asked, and another way of asking gives the same rows, that way is taken; where
none does, the question as it is asked stands here, for Spark to say why not.
"""

from __future__ import annotations

from dataclasses import dataclass

RANKS = {"rank1": "price < 10000", "rank2": "price >= 10000 and price < 1000000", "rank3": "price >= 1000000"}
DAY = "date_format(dateTime, 'yyyy-MM-dd')"
HOUR = "hour(dateTime)"
BID = "auction, bidder, price, channel, url, dateTime, extra"
AUCTION = "id, itemName, description, initialBid, reserve, dateTime, expires, seller, category, extra"
IN_TIME = """select b.price, b.auction, a.category, a.seller, b.dateTime from bids b join auctions a
    on b.auction = a.id and b.dateTime between a.dateTime and a.expires"""
RANKED_BIDS = ", ".join(
    ["count(*) as total_bids", *(f"count_if({holds}) as {rank}_bids" for rank, holds in RANKS.items())]
)
# Distinct counts are refused on streams; a set is not.
RANKED_SETS = ", ".join(
    made
    for column in ("bidder", "auction")
    for made in (
        f"size(collect_set({column})) as total_{column}s",
        *(f"size(collect_set(case when {holds} then {column} end)) as {rank}_{column}s"
          for rank, holds in RANKS.items()),
    )
)  # fmt: skip


@dataclass(frozen=True)
class Asked:
    """`key`: the columns of which a later row replaces an earlier one, where results are corrected."""

    statement: str
    mode: str = "append"
    key: tuple[str, ...] = ()
    note: str = ""


ASKED = {
    "q0": Asked("select auction, bidder, price, dateTime, extra from bids"),
    "q1": Asked("select auction, bidder, 0.908 * price as price, dateTime, extra from bids"),
    "q2": Asked("select auction, price from bids where auction % 123 = 0"),
    "q3": Asked(
        """select p.name, p.city, p.state, a.id from auctions a join persons p on a.seller = p.id
        where a.category = 10 and p.state in ('OR', 'ID', 'CA')"""
    ),
    "q4": Asked(
        f"""select category, avg(final) as final from (
        select category, max(price) as final from ({IN_TIME}) group by auction, category) group by category""",
        mode="update",
    ),
    "q5": Asked(
        """select hot.auction, hot.num, window.start as starttime, window.end as endtime from (
            select window, explode(filter(every, each -> each.num = most)) as hot from (
                select window, collect_list(struct(auction, num)) as every, max(num) as most
                from counts group by window))""",
        note="one pass over the counts of a window instead of a join with their maximum",
    ),
    "q6": Asked(
        f"""select seller, avg(price) over (partition by seller order by dateTime
        rows between 10 preceding and current row) as final from ({IN_TIME})"""
    ),
    "q7": Asked(
        """select auction, price, bidder, dateTime, extra from bids_of_windows b join (
            select window(dateTime, '10 seconds') as w, max(price) as highest from bids group by 1) m
        on b.w = m.w and b.price = m.highest""",
        note="by window, so a bid right at an end is in one",
    ),
    "q8": Asked(
        """select p.id, p.name, p.w.start as starttime from (
            select id, name, window(dateTime, '10 seconds') as w from persons) p left semi join (
            select seller, window(dateTime, '10 seconds') as w from auctions) a on p.id = a.seller and p.w = a.w"""
    ),
    "q9": Asked(
        f"""select id, best.* from (
            select a.id, a.expires as until, min_by(struct({", ".join(f"a.{name}" for name in AUCTION.split(", ")[1:])},
                b.auction, b.bidder, b.price, b.dateTime as bid_dateTime, b.extra as bid_extra),
                struct(-b.price, b.dateTime, b.bidder, b.extra)) as best
            from closing_auctions a join bids b
            on b.auction = a.id and b.dateTime between a.dateTime and a.expires
            group by a.id, a.expires)""",
        note="a watermark on the end of auctions, and the first by order instead of a rank",
    ),
    "q10": Asked(
        f"""select auction, bidder, price, dateTime, extra, {DAY} as dt, date_format(dateTime, 'HH:mm') as hm
        from bids"""
    ),
    "q11": Asked(
        """select bidder, count(*) as bid_count, w.start as starttime, w.end as endtime
        from (select bidder, session_window(dateTime, '10 seconds') as w from bids) group by bidder, w"""
    ),
    "q12": Asked(
        """select bidder, count(*) as bid_count, w.start as starttime, w.end as endtime
        from (select bidder, window(came, '10 seconds') as w from arrivals) group by bidder, w""",
        mode="update",
        key=("bidder", "starttime"),
    ),
    "q13": Asked(
        """select auction, bidder, price, dateTime, s.value
        from bids b join side s on b.auction % 10000 = s.key"""
    ),
    "q14": Asked(
        f"""select auction, bidder, 0.908 * price as price,
            case when {HOUR} >= 8 and {HOUR} <= 18 then 'dayTime'
                 when {HOUR} <= 6 or {HOUR} >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
            dateTime, extra, length(extra) - length(replace(extra, 'c', '')) as c_counts
        from bids where 0.908 * price > 1000000 and 0.908 * price < 50000000"""
    ),
    "q15": Asked(
        f"select {DAY} as day, {RANKED_BIDS}, {RANKED_SETS} from untimed group by 1",
        mode="update",
        key=("day",),
        note="sets instead of distinct counts",
    ),
    "q16": Asked(
        f"""select channel, {DAY} as day, max(date_format(dateTime, 'HH:mm')) as minute, {RANKED_BIDS}, {RANKED_SETS}
        from untimed group by channel, 2""",
        mode="update",
        key=("channel", "day"),
        note="sets instead of distinct counts",
    ),
    "q17": Asked(
        f"""select auction, {DAY} as day, {RANKED_BIDS}, min(price) as min_price, max(price) as max_price,
        avg(price) as avg_price, sum(price) as sum_price from untimed group by auction, 2""",
        mode="update",
        key=("auction", "day"),
    ),
    "q18": Asked(
        f"""select last.* from (select bidder, auction, min_by(struct({BID}), struct(-unix_micros(dateTime), extra))
        as last from untimed group by bidder, auction)""",
        mode="update",
        key=("bidder", "auction"),
        note="the first by order instead of a rank",
    ),
    "q19": Asked(
        """select * from (select *, row_number() over (partition by auction
        order by price desc, bidder, dateTime, extra) as rank_number from bids) where rank_number <= 10"""
    ),
    "q20": Asked(
        """select b.*, a.id, a.itemName, a.description, a.initialBid, a.reserve, a.dateTime as dateTime_auction,
            a.expires, a.seller, a.category, a.extra as extra_auction
        from bids b join auctions a on b.auction = a.id where a.category = 10"""
    ),
    "q21": Asked(
        """select * from (select auction, bidder, price, channel, case lower(channel)
            when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3'
            else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
        from bids) where channel_id <> ''"""
    ),
    "q22": Asked(
        """select auction, bidder, price, channel, split(url, '/')[3] as dir1, split(url, '/')[4] as dir2,
        split(url, '/')[5] as dir3 from bids"""
    ),
    "q101": Asked(
        """select id, itemName, highest
        from auctions left join (select auction, max(price) as highest from bids group by auction) on id = auction""",
        mode="update",
    ),
    "q102": Asked(
        """select id, itemName, count(*) as bid_count from auctions join bids on id = auction group by id, itemName
        having count(*) >= (select count(*) div count(distinct auction) from bids)""",
        mode="update",
    ),
    "q103": Asked(
        """select id, itemName from auctions
        where id in (select auction from bids group by auction having count(*) >= 20)""",
        mode="update",
    ),
    "q104": Asked(
        """select id, itemName from auctions
        where id not in (select auction from bids group by auction having count(*) < 20)""",
        mode="update",
    ),
    "q105": Asked(
        """select id, itemName, count(*) as bid_count from auctions join bids on id = auction group by id, itemName
        order by bid_count desc, id limit 1000""",
        mode="update",
    ),
    "q106": Asked(
        f"""select min(final) as min_final from (
        select max(price) as final from ({IN_TIME}) group by auction)""",
        mode="update",
    ),
}

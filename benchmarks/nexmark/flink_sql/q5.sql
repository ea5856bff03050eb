with counts as (
    select auction, count(*) as num, window_start, window_end
    from table(hop(table bids, descriptor(`dateTime`), interval '2' second, interval '10' second))
    group by auction, window_start, window_end),
most as (
    select max(num) as num, window_start, window_end from counts group by window_start, window_end)
select c.auction, c.num, c.window_start as starttime, c.window_end as endtime
from counts c join most m
on c.window_start = m.window_start and c.window_end = m.window_end and c.num = m.num

select b.auction, b.price, b.bidder, b.`dateTime`, b.extra
from bids b join (
    select max(price) as price, window_end as ends
    from table(tumble(table bids, descriptor(`dateTime`), interval '10' second))
    group by window_start, window_end) w
on b.price = w.price
where b.`dateTime` between w.ends - interval '10' second and w.ends

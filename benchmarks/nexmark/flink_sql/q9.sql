select id, itemName, description, initialBid, reserve, opened as `dateTime`, expires, seller, category,
    auction_extra as extra, auction, bidder, price, `dateTime` as bid_dateTime, extra as bid_extra
from (
    select *, row_number() over (partition by id order by price desc, `dateTime`, bidder, extra) as place from in_time)
where place = 1

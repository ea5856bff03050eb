select auction, bidder, price, channel, url, `dateTime`, extra, rank_number
from (
    select *, row_number() over (
        partition by auction order by price desc, bidder, `dateTime`, extra) as rank_number from bids)
where rank_number <= 10

select auction, bidder, price, channel, url, `dateTime`, extra
from (
    select *, row_number() over (partition by bidder, auction order by `dateTime` desc, extra) as place from bids)
where place = 1

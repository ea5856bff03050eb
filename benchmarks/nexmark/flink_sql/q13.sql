select auction, bidder, price, b.`dateTime`, s.`value`
from (select *, mod(auction, 10000) as `key` from bids) b
join side for system_time as of b.`dateTime` as s on b.`key` = s.`key`

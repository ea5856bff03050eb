select id, itemName, count(*) as bid_count
from auctions join bids on id = auction
group by id, itemName
having count(*) >= (select count(*) / count(distinct auction) from bids)

select id, itemName, count(*) as bid_count
from auctions join bids on id = auction
group by id, itemName
order by bid_count desc, id limit 1000

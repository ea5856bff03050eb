select id, itemName, highest
from auctions left join (select auction, max(price) as highest from bids group by auction) on id = auction

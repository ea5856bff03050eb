select b.auction, b.bidder, b.price, b.channel, b.url, b.`dateTime`, b.extra, a.id, a.itemName, a.description,
    a.initialBid, a.reserve, a.`dateTime` as dateTime_auction, a.expires, a.seller, a.category, a.extra as extra_auction
from bids b join auctions a on b.auction = a.id
where a.category = 10

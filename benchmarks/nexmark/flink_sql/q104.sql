select id, itemName from auctions
where id not in (select auction from bids group by auction having count(*) < 20)

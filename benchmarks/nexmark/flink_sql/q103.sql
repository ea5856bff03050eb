select id, itemName from auctions
where id in (select auction from bids group by auction having count(*) >= 20)

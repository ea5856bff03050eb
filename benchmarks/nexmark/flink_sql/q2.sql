select auction, price from bids where mod(auction, 123) = 0

select bidder, count(*) as bid_count, window_start as starttime, window_end as endtime
from table(tumble(table bids, descriptor(came), interval '10' second))
group by bidder, window_start, window_end

select bidder, count(*) as bid_count, window_start as starttime, window_end as endtime
from table(session(table bids partition by bidder, descriptor(`dateTime`), interval '10' second))
group by bidder, window_start, window_end

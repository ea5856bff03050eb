select auction, bidder, 0.908 * price as price,
    case when hour(`dateTime`) >= 8 and hour(`dateTime`) <= 18 then 'dayTime'
         when hour(`dateTime`) <= 6 or hour(`dateTime`) >= 20 then 'nightTime' else 'otherTime' end as bidTimeType,
    `dateTime`, extra, char_length(extra) - char_length(replace(extra, 'c', '')) as c_counts
from bids where 0.908 * price > 1000000 and 0.908 * price < 50000000

select date_format(`dateTime`, 'yyyy-MM-dd') as `day`,
    {counts_by_rank}
from bids
group by date_format(`dateTime`, 'yyyy-MM-dd')

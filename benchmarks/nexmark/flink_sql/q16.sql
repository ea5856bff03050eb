select channel,
    date_format(`dateTime`, 'yyyy-MM-dd') as `day`,
    max(date_format(`dateTime`, 'HH:mm')) as `minute`,
    {counts_by_rank}
from bids
group by channel, date_format(`dateTime`, 'yyyy-MM-dd')

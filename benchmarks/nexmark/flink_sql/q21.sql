select * from (
    select auction, bidder, price, channel,
        case lower(channel) when 'apple' then '0' when 'google' then '1' when 'facebook' then '2' when 'baidu' then '3'
            else regexp_extract(url, '(&|^)channel_id=([^&]*)', 2) end as channel_id
    from bids)
where channel_id <> ''

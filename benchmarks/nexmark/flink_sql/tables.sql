create table persons (
    id bigint, name string, emailAddress string, creditCard string, city string, state string,
    `dateTime` timestamp(3), extra string,
    watermark for `dateTime` as `dateTime` - interval '4' second
) with ('connector' = 'filesystem', 'path' = '{folder}/persons', 'format' = 'parquet', 'parquet.utc-timezone' = 'true');

create table auctions (
    id bigint, itemName string, description string, initialBid bigint, reserve bigint, `dateTime` timestamp(3),
    expires timestamp(3), seller bigint, category bigint, extra string,
    watermark for `dateTime` as `dateTime` - interval '4' second
) with ('connector' = 'filesystem', 'path' = '{folder}/auctions', 'format' = 'parquet', 'parquet.utc-timezone' = 'true');

create table bids (
    auction bigint, bidder bigint, price bigint, channel string, url string, `dateTime` timestamp(3), extra string,
    came as proctime(),
    watermark for `dateTime` as `dateTime` - interval '4' second
) with ('connector' = 'filesystem', 'path' = '{folder}/bids', 'format' = 'parquet', 'parquet.utc-timezone' = 'true'{watched});

create table side (
    `key` bigint, `value` string,
    since as cast(timestamp '1970-01-01 00:00:00' as timestamp(3)),
    watermark for since as since,
    primary key (`key`) not enforced
) with ('connector' = 'filesystem', 'path' = '{side}', 'format' = 'csv', 'csv.ignore-parse-errors' = 'true');

create temporary view in_time as
select b.auction, b.bidder, b.price, b.`dateTime`, b.extra, a.id, a.itemName, a.description, a.initialBid, a.reserve,
    a.`dateTime` as opened, a.expires, a.seller, a.category, a.extra as auction_extra
from bids b join auctions a on b.auction = a.id where b.`dateTime` between a.`dateTime` and a.expires;

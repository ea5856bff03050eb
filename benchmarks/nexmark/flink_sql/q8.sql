select p.id, p.name, p.window_start as starttime
from (
    select id, name, window_start, window_end
    from table(tumble(table persons, descriptor(`dateTime`), interval '10' second))
    group by id, name, window_start, window_end) p
join (
    select seller, window_start, window_end
    from table(tumble(table auctions, descriptor(`dateTime`), interval '10' second))
    group by seller, window_start, window_end) a
on p.id = a.seller and p.window_start = a.window_start and p.window_end = a.window_end

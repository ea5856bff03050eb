select seller, avg(cast(price as double)) over (
    partition by seller order by place_in_time rows between 10 preceding and current row) as final
from (
    select *, row_number() over (partition by id order by price desc, `dateTime`) as place,
        concat(date_format(`dateTime`, 'yyyy-MM-dd HH:mm:ss.SSS'), lpad(cast(id as string), 20, '0')) as place_in_time
    from in_time)
where place = 1

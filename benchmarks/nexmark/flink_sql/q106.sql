select min(final) as min_final from (select max(price) as final from in_time group by id)

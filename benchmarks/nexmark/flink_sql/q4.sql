select category, avg(cast(final as double)) as final
from (select category, max(price) as final from in_time group by id, category)
group by category

select p.name, p.city, p.state, a.id
from auctions a join persons p on a.seller = p.id
where a.category = 10 and p.state in ('OR', 'ID', 'CA')

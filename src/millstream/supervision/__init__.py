"""The supervisor: keeps jobs running, on one machine, as people asked for.

`store` holds what people want and what was seen, `drivers` starts and stops the processes of jobs, `supervisor` brings
the two together, `schedules` knows when a scheduled job is due, `http` is the interface, and `client` speaks it.
"""

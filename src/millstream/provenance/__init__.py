"""Why a result is what it is: the recorded batches of a job are read again and run in this process.

Nothing is stored per row. A batch is repeatable, because its ranges and its clock are in the job's checkpoint.
"""

"""Single views on one decision, one file each: a value from 0 to 1 per candidate, which `weighted` adds up by its weights.

Each is a function (demand, sight, board) -> Column. What is wanted counts upwards (overlap, affinity), what is not as well (delay,
pressure): its weight is subtracted.
"""

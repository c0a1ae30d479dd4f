"""Budget alerts: `watch` finds percentages of limits that are reached, and posts a signed message about each, once."""

-- How much one owner has. KEYS: index, rows. Answers: entries, bytes.
prune()
finish()
return {redis.call('ZCARD', INDEX), bytes}

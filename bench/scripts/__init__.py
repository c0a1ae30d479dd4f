"""What a script on Valkey costs the process that asks for it: the thin path beside redis-py."""

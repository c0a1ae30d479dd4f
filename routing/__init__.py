"""Where a request goes: pure deciders over an immutable Fleet and this process's own Board.

`schedule.py` is the interface; policies are one file each in `policies/`, listed in `registry.py`.
"""

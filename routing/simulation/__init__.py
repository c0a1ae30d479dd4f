"""A fleet simulator in virtual time: the gateway's routing code against modelled engines, to compare policies on a trace before a rollout.

The gateway's data path imports none of it. Randomness is handed in (`Dice`), so a run is a function of its inputs.
"""

"""A fleet in virtual time: the same decision code against modelled engines, to compare policies on a trace before rolling one out.

Nothing of it is imported by the gateway's data path. Chance is handed in (`Dice`), so a run is a function of its inputs.
"""

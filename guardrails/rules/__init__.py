"""The local rules: each module has one scanner, made from plain arguments, that only computes."""

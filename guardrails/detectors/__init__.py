"""Classifiers that run elsewhere, one file for each kind of service: what they are asked, and how their answers are read."""

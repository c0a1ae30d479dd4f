"""Answers of similar requests: what a question is, what may not differ, and when the nearest answer is given."""

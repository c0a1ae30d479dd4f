"""Responses in the background: requests that go on without their callers, and write their events into the database."""

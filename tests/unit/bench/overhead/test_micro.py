"""The single functions that are timed: each of them runs."""

from bench.overhead.micro import cases


async def test_every_function_that_is_timed_runs_twice() -> None:
    functions = cases()
    assert len(functions) > 10
    for function in functions.values():
        function()
        function()

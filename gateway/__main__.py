"""`python -m gateway` is `tidegate`, for places where the console script is not on the PATH."""

from gateway.cli import main

main()

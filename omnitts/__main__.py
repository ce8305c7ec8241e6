"""`python -m omnitts`."""

from omnitts.cli import main

main()

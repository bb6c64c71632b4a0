"""What the command line tells its caller."""

DONE = 0
FAILURE = 1
BAD_INPUT = 2
NO_FEASIBLE_PLAN = 3
INTERRUPTED = 130

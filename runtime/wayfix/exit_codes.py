"""Exit statuses of the command line."""

EXIT_FOUND = 0
EXIT_NO_ANSWER = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

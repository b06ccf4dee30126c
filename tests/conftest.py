"""For all tests."""

import signal

# A shell starts background jobs with SIGINT ignored, and what they start inherits it: tests that press Ctrl-C mean it.
signal.signal(signal.SIGINT, signal.default_int_handler)

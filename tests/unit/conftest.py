"""The same on every machine: property tests do not fail for the time they take, and write nothing into the tree; Ctrl-C
reaches what the tests start, also where a shell had started the tests in the background.
"""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("busy")

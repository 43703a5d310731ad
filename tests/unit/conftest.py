"""Property tests on busy machines: how long an example takes is no reason to fail; nothing is written into the tree."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
settings.load_profile("busy")

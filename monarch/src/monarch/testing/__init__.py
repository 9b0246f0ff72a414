"""The conformance kit: `check_launcher(make)` holds a launcher to the actor spec's contract.

Plain functions, no test runner. A check has a stable id; a capability that the launcher does not claim is reported as
unclaimed, never skipped in silence.
"""

from monarch.testing.kit import CHECKS, Report, check_launcher

__all__ = ["CHECKS", "Report", "check_launcher"]

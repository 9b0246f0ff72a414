"""The conformance kit: ``check_kernel(kernel, cases)`` holds a kernel to :mod:`helium.contract`.

Plain functions, no test runner: ``assert not check_kernel(mine, [Case((x, weight, 1e-6))]).failed``. A check has a
stable id; one that cannot be made here is reported as unclaimed with the reason, never skipped in silence.
"""

from helium.testing.case import Case
from helium.testing.kit import CHECKS, PROVIDER_CHECKS, Report, check_kernel, check_provider

__all__ = ["CHECKS", "Case", "PROVIDER_CHECKS", "Report", "check_kernel", "check_provider"]

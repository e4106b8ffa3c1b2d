"""Names of the conformance kit; ``testing.py`` gets them on first use."""

from topoplan_testing import build_example as build_example, check_component as check_component
from topoplan_testing import check_rounds as check_rounds, checks_for as checks_for, landscape as landscape
from topoplan_testing import parametrize_with_checks as parametrize_with_checks, reference as reference

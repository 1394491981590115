# SPDX-License-Identifier: Apache-2.0
"""How a mean is made: robust rules over single uploads, and sums that nobody can look into."""

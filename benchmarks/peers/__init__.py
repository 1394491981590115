# SPDX-License-Identifier: Apache-2.0
"""Other frameworks, each run in its own environment."""

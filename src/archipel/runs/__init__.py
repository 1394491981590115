# SPDX-License-Identifier: Apache-2.0
"""Runs: the loop over rounds, who takes part, what is recorded, and what it is compared with."""

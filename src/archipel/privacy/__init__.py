# SPDX-License-Identifier: Apache-2.0
"""Privacy: what is released, what it costs, what it means."""

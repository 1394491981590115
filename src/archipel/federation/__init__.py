# SPDX-License-Identifier: Apache-2.0
"""A real federation: coordinator, sites and peers, who they are and what they agreed to."""

# SPDX-License-Identifier: Apache-2.0
"""Peer sampling: everybody knows a few others, and never the same for long."""

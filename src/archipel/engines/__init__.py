# SPDX-License-Identifier: Apache-2.0
"""Engines run an algorithm over a federation."""

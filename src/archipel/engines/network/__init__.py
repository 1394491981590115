# SPDX-License-Identifier: Apache-2.0
"""The network engine: the rounds of an algorithm between parties that are elsewhere."""

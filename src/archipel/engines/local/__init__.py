# SPDX-License-Identifier: Apache-2.0
"""The local engine: all parties of a simulation on one machine."""

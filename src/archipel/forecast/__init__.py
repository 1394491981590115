# SPDX-License-Identifier: Apache-2.0
"""What a study will take, told from a few measured rounds: time, memory, bytes, energy."""

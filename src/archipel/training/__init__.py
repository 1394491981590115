# SPDX-License-Identifier: Apache-2.0
"""How a party trains: local descent, optimisers, learning rates."""

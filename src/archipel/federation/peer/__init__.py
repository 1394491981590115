# SPDX-License-Identifier: Apache-2.0
"""A peer: a site that other peers ask, too."""

# SPDX-License-Identifier: Apache-2.0
"""A site: its folder, its table, its policy, and its part in studies."""

# SPDX-License-Identifier: Apache-2.0
"""The study: one short TOML file, its sections, and the parts that it names."""

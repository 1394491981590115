# SPDX-License-Identifier: Apache-2.0
"""Who contributed to a model, and who took it for nothing."""

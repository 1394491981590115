# SPDX-License-Identifier: Apache-2.0
"""The Ray engine: the local engine, with workers on the machines of a Ray cluster."""

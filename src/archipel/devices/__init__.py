# SPDX-License-Identifier: Apache-2.0
"""What parties are in a simulation: how fast, how far from the server, when there, at what power.

`device.py` says what a simulation asks of them; everything is drawn by (seed, party, purpose), at a
cost in proportion to the parties asked about.
"""

# SPDX-License-Identifier: Apache-2.0
"""The coordinator: enrolment, approvals, and the studies that it runs."""

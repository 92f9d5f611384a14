"""Sections about rewards.

Read card.py: the report card of a reward, then benchmarks, figures of its components, probes and attacks.
"""

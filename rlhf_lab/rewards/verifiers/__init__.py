"""Programs that check a reply against its row: math, ifeval, json. One object scores the reward and the metric.

Read verifier.py (the protocol, and a verifier as a reward), oracle.py (the same verifier as what is known of the data),
then a verifier; settings.py has the settings of each.
"""

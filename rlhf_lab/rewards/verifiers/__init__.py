"""Programs that check a response against its row: math, ifeval, json. One object provides both reward and metric.

Read verifier.py (the protocol, and a verifier as a reward), oracle.py (the same verifier as a metric), then a
verifier such as json.py or math.py with stated.py, equivalence.py and units.py. settings.py has their settings.
"""

"""Conclusions of a study from its jobs.

Read frame.py (jobs as rows), replication.py (what differs between seeds), replicates.py (the inference),
registration.py (when claims were written, and which seeds may decide them), verdict.py (claims), finding.py (the
sentences), then table.py, curves.py, pareto_front.py and crossing.py. pairing.py decides which jobs are compared, and
origin.py says where the numbers come from. search_trials.py has the trials of a search.
"""
